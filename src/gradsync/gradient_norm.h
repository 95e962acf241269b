// One gradient norm for all ranks, whatever the mesh: its bits depend on the gradients and on the number of
// tensor-parallel ranks alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/stream.h"
#include "ops/square_sum.h"
#include "params/param_store.h"

namespace meshtrain {

// Sums of squares of the gradients that the data-parallel ranks of one store hold together.
class UnitSquares {
 public:
  // After store.allocate(); the store outlives it.
  explicit UnitSquares(const ParamStore& store);

  // For each unit the sum in double, by the tree of ops/square_sum.h; parameters that another rank counts are
  // left out. Every rank adds the nodes of its own part; `owners` are the ranks that have the others, one a
  // part. A collective call where there are parts; all get the same sums. Zeros on `sim`.
  std::vector<double> sums(Stream& stream, Communicator& owners) const;

 private:
  const ParamStore& store_;
  std::vector<std::vector<ops::ElementRange>> uncounted_;  // of each unit
  std::vector<std::vector<std::size_t>> nodes_;            // of each part and unit
  std::size_t longest_ = 0;                                // nodes of the part that has most
};

// Where a rank's sums belong.
struct NormPlace {
  int tensor_ranks = 1;
  int tensor_rank = 0;
  bool counts = true;       // one of the ranks whose sums are the same does: data-parallel rank 0
  std::vector<int> unit{};  // of each unit of the store: which of the model it is; -1: another stage's copy
  std::size_t model_units = 0;
};

// The sum of squares of the whole model: unit by unit in the model's order, tensor-parallel ranks added in rank
// order. A collective call of `everyone` where the model lies on several tensor-parallel ranks or stages.
double combine_unit_sums(std::span<const double> sums, const NormPlace& place, Communicator& everyone);

}  // namespace meshtrain
