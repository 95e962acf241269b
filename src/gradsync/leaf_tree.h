// One pairwise tree of gradients over all micro-batches of a step: micro-batch t of rank r of K is leaf
// t·K + r, so that the sum has the same bits for every split of the step between ranks and micro-steps.
//
// Each rank sums 1/K of the elements of a unit. Where K is a power of two, a reduce-scatter of micro-step t
// gives the node above leaves t·K … t·K + K - 1; else the leaves come one by one (all-to-all). What is complete
// is kept as in a binary counter: level l holds a node of 2^l of them, if any.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "params/param_store.h"

namespace meshtrain::gradsync {

class LeafTree {
 public:
  // `owned_top`: the highest level lies in the store's owned gradients, which is then where results are;
  // their number of parts must be that of `ranks`. Gradients are fp32.
  LeafTree(Device& device, const ParamStore& store, Communicator& ranks, std::int64_t micro_steps,
           bool owned_top);

  // Adds micro-step `step`'s gradients of all of a unit, on every rank; steps come in order.
  void add(Stream& stream, int unit, const Tensor& gradients, std::int64_t step);
  // After the last step: this rank's part of the sum [unit elements / K].
  Tensor finish(Stream& stream, int unit) const;

 private:
  Tensor level(int unit, int index) const;
  void carry(Stream& stream, int unit, int target) const;

  const ParamStore& store_;
  Communicator& ranks_;
  std::int64_t nodes_;  // of the lowest level, in a step
  int top_;
  bool owned_top_;
  Buffer levels_;
  Buffer leaves_;  // of one unit, where they come one by one
};

}  // namespace meshtrain::gradsync
