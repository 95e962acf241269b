#include "comm/device_mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace meshtrain {

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, int world_rank, int world_size) : axes_(std::move(axes)) {
  std::int64_t rest = world_rank;
  std::int64_t product = 1;
  for (const MeshAxis& axis : axes_) {
    check(axis.size >= 1, "a mesh axis has at least one rank");
    coordinates_.push_back(rest % axis.size);
    rest /= axis.size;
    product *= axis.size;
  }
  check(product == world_size && rest == 0, "the mesh has as many ranks as the world");
}

std::size_t DeviceMesh::index_of(std::string_view axis) const {
  const auto found =
      std::find_if(axes_.begin(), axes_.end(), [&](const MeshAxis& a) { return a.name == axis; });
  check(found != axes_.end(), "a mesh axis that is not there");
  return static_cast<std::size_t>(found - axes_.begin());
}

std::int64_t DeviceMesh::size(std::string_view axis) const {
  return axes_[index_of(axis)].size;
}

std::int64_t DeviceMesh::coordinate(std::string_view axis) const {
  return coordinates_[index_of(axis)];
}

std::vector<int> DeviceMesh::ranks_along(const std::vector<std::string>& axes) const {
  std::vector<bool> along(axes_.size(), false);
  for (const std::string& axis : axes) along[index_of(axis)] = true;
  std::vector<int> ranks = {0};
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const std::int64_t first = along[i] ? 0 : coordinates_[i];
    const std::int64_t last = along[i] ? axes_[i].size - 1 : coordinates_[i];
    std::vector<int> next;
    for (std::int64_t c = first; c <= last; ++c) {
      for (const int rank : ranks) next.push_back(rank + static_cast<int>(c * stride));
    }
    ranks = std::move(next);
    stride *= axes_[i].size;
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::unique_ptr<Communicator> DeviceMesh::group(World& world, const std::vector<std::string>& axes) const {
  return world.group(fmt::format("{}", fmt::join(axes, "+")), ranks_along(axes));
}

}  // namespace meshtrain
