#include "ops/square_sum.h"

#include <algorithm>
#include <bit>

#include "ops/checks.h"
#include "ops/cpu/square_sum.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

// b = a + b.
void add_lanes(const SquareNode& a, SquareNode& b) {
  for (std::size_t k = 0; k < b.lanes.size(); ++k) b.lanes[k] = a.lanes[k] + b.lanes[k];
}

int floor_log2(std::int64_t n) {
  return 63 - std::countl_zero(static_cast<std::uint64_t>(n));
}

// The largest subtrees of at most `max_height` that together are leaves [begin, end).
std::vector<SquareNode> cover(std::int64_t begin, std::int64_t end, int max_height) {
  std::vector<SquareNode> nodes;
  while (begin < end) {
    const int aligned = std::countr_zero(static_cast<std::uint64_t>(begin));
    const int height = std::min({aligned, floor_log2(end - begin), max_height});
    nodes.push_back({.index = begin >> height, .height = height});
    begin += std::int64_t{1} << height;
  }
  return nodes;
}

bool siblings(const SquareNode& left, const SquareNode& right) {
  return left.height == right.height && left.index % 2 == 0 && right.index == left.index + 1;
}

// Neighbours in order, with siblings replaced by their parent for as long as there are any.
std::vector<SquareNode> merge_siblings(std::span<const SquareNode> nodes) {
  std::vector<SquareNode> merged;
  for (SquareNode node : nodes) {
    while (!merged.empty() && siblings(merged.back(), node)) {
      add_lanes(merged.back(), node);
      node.index /= 2;
      ++node.height;
      merged.pop_back();
    }
    merged.push_back(node);
  }
  return merged;
}

std::int64_t leaves_of(std::int64_t elements) {
  return (elements + kSquareLeaf - 1) / kSquareLeaf;
}

// Subtrees small enough to be shared out among threads, and few enough to be merged in no time. A leaf that
// is not whole stands alone.
std::vector<SquareNode> task_nodes(std::int64_t first_leaf, std::int64_t count) {
  constexpr int kMinHeight = 10;  // 64 KiB of fp32
  constexpr int kLogTasks = 8;
  const std::int64_t whole = count / kSquareLeaf;
  const int height = std::max(floor_log2(whole + 1) - kLogTasks, kMinHeight);
  std::vector<SquareNode> nodes = cover(first_leaf, first_leaf + whole, height);
  if (count % kSquareLeaf != 0) nodes.push_back({.index = first_leaf + whole, .height = 0});
  return nodes;
}

bool ascend(std::span<const ElementRange> ranges) {
  std::int64_t next = 0;
  for (const ElementRange& range : ranges) {
    if (range.begin < next || range.end < range.begin) return false;
    next = range.end;
  }
  return true;
}

}  // namespace

std::vector<SquareNode> square_node_cover(std::int64_t first_element, std::int64_t count) {
  check(first_element >= 0 && first_element % kSquareLeaf == 0, "a shard's squares start inside a leaf");
  const std::int64_t first_leaf = first_element / kSquareLeaf;
  return cover(first_leaf, first_leaf + leaves_of(count), kMaxSquareHeight);
}

std::vector<SquareNode> square_nodes(Stream& stream, const Tensor& x, std::int64_t first_element,
                                     std::span<const ElementRange> without) {
  check(x.contiguous() && is_float(x.dtype()), "square_nodes takes a contiguous tensor of fp32, bf16 or fp16");
  check(ascend(without), "square_nodes leaves out ranges that are ascending and do not overlap");
  std::vector<SquareNode> nodes = square_node_cover(first_element, x.numel());
  run(stream, {.bytes = x.bytes()}, [&] {
    const std::int64_t first_leaf = first_element / kSquareLeaf;
    std::vector<SquareNode> tasks = task_nodes(first_leaf, x.numel());
    cpu::compute_square_nodes(stream, x, first_leaf, tasks, without);
    nodes = merge_siblings(tasks);
  });
  return nodes;
}

double combine_square_nodes(std::span<const SquareNode> nodes) {
  std::int64_t next = 0;
  for (const SquareNode& node : nodes) {
    check(node.height >= 0 && node.height <= kMaxSquareHeight && node.index << node.height == next,
          "nodes of a sum of squares have a gap, overlap or are out of order");
    next = (node.index + 1) << node.height;
  }
  if (nodes.empty()) return 0.0;
  // What remains are subtrees of falling heights. Each is the left sibling of the rest, once that is
  // padded with zeros.
  std::vector<SquareNode> rest = merge_siblings(nodes);
  SquareNode root = rest.back();
  for (std::size_t i = rest.size() - 1; i > 0; --i) add_lanes(rest[i - 1], root);
  for (std::size_t half = root.lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) root.lanes[k] += root.lanes[k + half];
  }
  return root.lanes[0];
}

}  // namespace meshtrain::ops
