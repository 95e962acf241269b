// The grid of ranks: named axes, groups are its slices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace meshtrain {

struct MeshAxis {
  std::string name;
  std::int64_t size = 1;
};

// Axes from the innermost: world rank = c0 + c1·size0 + c2·size0·size1 + …, c being the coordinates.
class DeviceMesh {
 public:
  // The product of the sizes must be world_size.
  DeviceMesh(std::vector<MeshAxis> axes, int world_rank, int world_size);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  std::int64_t size(std::string_view axis) const;
  std::int64_t coordinate(std::string_view axis) const;  // of this rank
  // World ranks that differ from this one along these axes only, in rank order.
  std::vector<int> ranks_along(const std::vector<std::string>& axes) const;
  // Their communicator, named after the axes ("dp", "tp+dp").
  std::unique_ptr<Communicator> group(World& world, const std::vector<std::string>& axes) const;

 private:
  std::size_t index_of(std::string_view axis) const;

  std::vector<MeshAxis> axes_;
  std::vector<std::int64_t> coordinates_;
};

}  // namespace meshtrain
