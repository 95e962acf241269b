// A sum of squares whose bits do not depend on how a tensor is cut into shards, on the number of threads or
// on the instruction set.
//
// The elements of the origin, a tensor or any flat range that shards are cut from, are the leaves of a
// binary tree, 16 to a leaf. A leaf has 16 values in double, the squares of its elements, which are exact; a
// node's are its left child's plus its right child's, lane by lane. At the root the 16 lanes are added in
// pairs: k with k + 8, then + 4, + 2, + 1. Elements beyond the end are zeros, which change no sum, so the
// tree may have any number of leaves, padding may be counted or not, and each shard can reduce the largest
// subtrees that lie within it by itself.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

inline constexpr std::int64_t kSquareLeaf = 16;
inline constexpr int kMaxSquareHeight = 58;

// The sums of leaves [index << height, (index + 1) << height). Ranks may exchange nodes as bytes.
struct SquareNode {
  std::int64_t index = 0;
  std::int64_t height = 0;
  std::array<double, kSquareLeaf> lanes{};
};
static_assert(std::is_trivially_copyable_v<SquareNode> && sizeof(SquareNode) == 144);

// The largest subtrees that together are elements [first_element, first_element + count) of the origin, in
// order, at most two of each height; their lanes are zero. first_element is a multiple of kSquareLeaf; so is
// count, unless the range ends where the origin does. Tells a receiver what another shard's nodes are.
std::vector<SquareNode> square_node_cover(std::int64_t first_element, std::int64_t count);

// Elements [begin, end) of the origin.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// square_node_cover() of x, a contiguous fp32, bf16 or fp16 tensor that lies at `first_element` of its
// origin, with the sums of its squares; zeros on `sim`. Elements of `without`, ascending ranges that do not
// overlap and may reach beyond x, count as zeros whatever they are.
std::vector<SquareNode> square_nodes(Stream& stream, const Tensor& x, std::int64_t first_element,
                                     std::span<const ElementRange> without = {});

// The sum of squares of the origin from the nodes of all its shards, in order and without a gap from the
// first leaf on. Not finite when any element is not. 0 for no nodes.
double combine_square_nodes(std::span<const SquareNode> nodes);

}  // namespace meshtrain::ops
