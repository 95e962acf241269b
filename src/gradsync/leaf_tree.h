// One pairwise tree of gradients over all micro-batches of a step: micro-batch t of rank r of K is leaf
// t·K + r, so that the sum has the same bits for every split of the step between ranks and micro-steps.
//
// Each rank sums 1/K of the elements of a unit. Where K is a power of two, a reduce-scatter of micro-step t
// gives the node above leaves t·K … t·K + K - 1; else the leaves come one by one (all-to-all). What is complete
// is kept as in a binary counter: level l holds a node of 2^l of them, if any.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/stream.h"
#include "params/param_store.h"

namespace meshtrain::gradsync {

// For leaves that come one by one: memory of the largest unit. `unit_elements`: fp32, by unit. Empty where K is
// a power of two.
Buffer leaf_memory(Device& device, const std::vector<std::int64_t>& unit_elements, const Communicator& ranks);

class LeafTree {
 public:
  // `unit_elements`: fp32, by unit, multiples of the ranks. `leaves`: leaf_memory() for them, which outlives
  // the tree; trees that are added to in turn may share it. `top`: where the highest level of a unit lies
  // [elements / K], which is then where results are; without it the tree has memory for that too.
  LeafTree(Device& device, std::vector<std::int64_t> unit_elements, Communicator& ranks,
           std::int64_t micro_steps, const Buffer& leaves, std::function<Tensor(int unit)> top = nullptr);

  // Adds micro-step `step`'s gradients of all of a unit, on every rank; steps come in order.
  void add(Stream& stream, int unit, const Tensor& gradients, std::int64_t step);
  // After the last step: this rank's part of the sum [unit elements / K].
  Tensor finish(Stream& stream, int unit) const;

 private:
  Tensor level(int unit, int index) const;
  void carry(Stream& stream, int unit, int target) const;

  std::vector<std::int64_t> unit_elements_;
  std::vector<std::int64_t> unit_begin_;  // and the end of the last
  Communicator& ranks_;
  std::int64_t nodes_;  // of the lowest level, in a step
  int top_;
  std::function<Tensor(int unit)> top_of_;
  const Buffer& leaves_;
  Buffer levels_;
};

// Of the units that the store trains.
std::vector<std::int64_t> trained_unit_elements(const ParamStore& store);

}  // namespace meshtrain::gradsync
