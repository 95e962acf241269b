// Whole units of a model on rank 0, from the ranks that hold slices and parts of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "params/param_store.h"
#include "train/mesh_layout.h"

namespace meshtrain {

enum class Copies : std::uint8_t {
  kFirst,    // of what several tensor-parallel ranks hold, the first one's is taken
  kCompare,  // and must be equal, bit for bit, to the others: else RunError naming the parameter and the ranks
};

class UnitGather {
 public:
  // Flat fp32: what this rank owns of a unit of its store, of masters or some optimizer state.
  using Owned = std::function<Tensor(int unit, std::size_t index)>;

  // `store` is this rank's, laid out as layout.held() of its coordinates; all outlive it.
  UnitGather(const MeshLayout& layout, const ParamStore& store, Communicator& everyone, Owned owned,
             Copies copies);

  // Tensor `index` of unit `model_unit`: on rank 0 in `whole`, laid out as in layout.model(). All ranks call it
  // in the same order; only those that own parts communicate. Of copies in data-parallel ranks the first is
  // taken.
  void fetch(int model_unit, std::size_t index, std::vector<float>& whole);

  // Whether rank 0 owns all of the unit: it needs no fetch().
  static bool is_here(const MeshLayout& layout, int parts, int model_unit);
  // Elements that rank 0 keeps beside `whole`.
  static std::int64_t staging_elements(const MeshLayout& layout);

 private:
  void send(int model_unit, std::size_t index);
  void receive(int tensor_rank, const MeshLayout::UnitPlace& place, std::size_t index, float* to);
  void put_in_place(int tensor_rank, const MeshLayout::UnitPlace& place, int model_unit,
                    std::vector<float>& whole);

  const MeshLayout& layout_;
  const ParamStore& store_;
  Communicator& everyone_;
  Owned owned_;
  Copies copies_;
  std::vector<float> staging_;  // of a unit, what one tensor-parallel rank holds
};

}  // namespace meshtrain
