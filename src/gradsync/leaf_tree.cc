#include "gradsync/leaf_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/transfer.h"

namespace meshtrain::gradsync {
namespace {

bool power_of_two(int ranks) {
  return std::has_single_bit(static_cast<unsigned>(ranks));
}

}  // namespace

std::vector<std::int64_t> trained_unit_elements(const ParamStore& store) {
  std::vector<std::int64_t> elements;
  for (const Unit& unit : store.units()) {
    if (!unit.copy) elements.push_back(unit.elements);
  }
  return elements;
}

Buffer leaf_memory(Device& device, const std::vector<std::int64_t>& unit_elements, const Communicator& ranks) {
  if (power_of_two(ranks.size())) return {};
  const std::int64_t largest = *std::max_element(unit_elements.begin(), unit_elements.end());
  return device.allocate(largest * size_of(DType::kF32), MemoryCategory::kCommunication);
}

LeafTree::LeafTree(Device& device, std::vector<std::int64_t> unit_elements, Communicator& ranks,
                   std::int64_t micro_steps, const Buffer& leaves, std::function<Tensor(int unit)> top)
    : unit_elements_(std::move(unit_elements)),
      unit_begin_{0},
      ranks_(ranks),
      nodes_(power_of_two(ranks.size()) ? micro_steps : micro_steps * ranks.size()),
      top_(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(nodes_))) - 1),
      top_of_(std::move(top)),
      leaves_(leaves) {
  for (const std::int64_t elements : unit_elements_) unit_begin_.push_back(unit_begin_.back() + elements);
  const std::int64_t part = unit_begin_.back() / ranks.size() * size_of(DType::kF32);
  levels_ = device.allocate(part * (top_of_ ? top_ : top_ + 1), MemoryCategory::kCommunication);
}

Tensor LeafTree::level(int unit, int index) const {
  if (top_of_ && index == top_) return top_of_(unit);
  const auto u = static_cast<std::size_t>(unit);
  const std::int64_t begin = (unit_begin_.back() * index + unit_begin_[u]) / ranks_.size();
  return tensor_in(levels_, begin * size_of(DType::kF32), DType::kF32, {unit_elements_[u] / ranks_.size()});
}

// The node just put into level `target` ends the ones below it.
void LeafTree::carry(Stream& stream, int unit, int target) const {
  const Tensor node = level(unit, target);
  for (int below = 0; below < target; ++below) ops::add(stream, level(unit, below), node, node);
}

void LeafTree::add(Stream& stream, int unit, const Tensor& gradients, std::int64_t step) {
  const auto target_of = [](std::int64_t node) { return std::countr_one(static_cast<std::uint64_t>(node)); };
  if (power_of_two(ranks_.size())) {
    ranks_.reduce_scatter(gradients, level(unit, target_of(step)), ReduceOp::kSum, Traffic::kGradients);
    carry(stream, unit, target_of(step));
    return;
  }
  const std::int64_t part = gradients.numel() / ranks_.size();
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks_.size()), part);
  const Tensor leaves = tensor_in(leaves_, 0, DType::kF32, {gradients.numel()});
  ranks_.all_to_all(gradients, counts, leaves, counts, Traffic::kGradients);
  for (std::int64_t r = 0; r < ranks_.size(); ++r) {
    const int target = target_of(step * ranks_.size() + r);
    ops::copy(stream, leaves.slice(0, r * part, part), level(unit, target));
    carry(stream, unit, target);
  }
}

Tensor LeafTree::finish(Stream& stream, int unit) const {
  const auto filled = static_cast<std::uint64_t>(nodes_);
  int last = std::countr_zero(filled);
  for (int next = last + 1; next <= top_; ++next) {
    if ((filled >> static_cast<unsigned>(next) & 1U) == 0) continue;
    ops::add(stream, level(unit, next), level(unit, last), level(unit, next));
    last = next;
  }
  return level(unit, top_);
}

}  // namespace meshtrain::gradsync
