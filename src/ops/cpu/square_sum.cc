#include "ops/cpu/square_sum.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/square_sum.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

using F64 = hn::ScalableTag<double>;

constexpr std::size_t kStep = hn::MaxLanes(F64());
constexpr std::size_t kVectors = kSquareLeaf / kStep;

// The 16 lanes of a node.
using Sum = std::array<hn::Vec<F64>, kVectors>;

HWY_INLINE Sum added(const Sum& left, const Sum& right) {
  Sum sum;
  for (std::size_t k = 0; k < kVectors; ++k) sum[k] = hn::Add(left[k], right[k]);
  return sum;
}

HWY_INLINE Sum leaf(const float* x) {
  const hn::Rebind<float, F64> narrow;
  Sum values;
  for (std::size_t k = 0; k < kVectors; ++k) values[k] = hn::PromoteTo(F64(), hn::LoadU(narrow, x + k * kStep));
  return values;
}

template <class T>
HWY_INLINE Sum leaf(const T* x) {
  Sum values;
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t k = 0; k < kVectors; ++k) values[k] = hn::PromoteTo(F64(), load(x + k));
#else
  for (std::size_t k = 0; k < kVectors; k += 2) {
    const Vec v = load(x + k * kStep);
    values[k] = hn::PromoteTo(F64(), hn::LowerHalf(v));
    values[k + 1] = hn::PromoteTo(F64(), hn::UpperHalf(hn::Half<F32>(), v));
  }
#endif
  return values;
}

// Of 2^kHeight leaves. The squares are exact in double, so that a fused addition changes nothing.
template <int kHeight, class T>
HWY_INLINE Sum subtree(const T* x) {
  if constexpr (kHeight == 0) {
    Sum sum = leaf(x);
    for (auto& v : sum) v = hn::Mul(v, v);
    return sum;
  } else if constexpr (kHeight == 1) {
    const Sum left = subtree<0>(x);
    Sum sum = leaf(x + kSquareLeaf);
    for (std::size_t k = 0; k < kVectors; ++k) sum[k] = hn::MulAdd(sum[k], sum[k], left[k]);
    return sum;
  } else {
    const Sum left = subtree<kHeight - 1>(x);
    return added(left, subtree<kHeight - 1>(x + (kSquareLeaf << (kHeight - 1))));
  }
}

// Subtrees of this height are straight code, whose sums stay in registers.
constexpr int kStraight = 4;

// As a binary counter: the trailing ones of i are the subtrees that wait for their right siblings.
template <class T>
Sum tall_subtree(const T* x, int height) {
  std::array<Sum, kMaxSquareHeight> waiting;
  Sum sum;
  for (std::int64_t i = 0; i < std::int64_t{1} << (height - kStraight); ++i) {
    sum = subtree<kStraight>(x + i * (kSquareLeaf << kStraight));
    std::size_t level = 0;
    for (; (i >> level) % 2 == 1; ++level) sum = added(waiting[level], sum);
    waiting[level] = sum;
  }
  return sum;
}

template <class T>
Sum subtree_of(const T* x, int height) {
  switch (height) {
    case 0:
      return subtree<0>(x);
    case 1:
      return subtree<1>(x);
    case 2:
      return subtree<2>(x);
    case 3:
      return subtree<3>(x);
    default:
      return tall_subtree(x, height);
  }
}

}  // namespace

void SquaresOfSubtree(DType dtype, const void* data, std::int64_t begin, std::int64_t end, int height,
                      double* lanes) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    const T* x = static_cast<const T*>(data) + begin;
    std::array<T, kSquareLeaf> padded{};
    if (end - begin < kSquareLeaf) {
      std::copy_n(x, end - begin, padded.data());
      x = padded.data();
    }
    const Sum sum = subtree_of(x, height);
    for (std::size_t k = 0; k < kVectors; ++k) hn::StoreU(sum[k], F64(), lanes + k * kStep);
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(SquaresOfSubtree);

namespace {

// Sums of squares of subtrees of x without the elements of some ranges. Only subtrees that a range begins or
// ends inside of are taken apart.
class PartialSquares {
 public:
  using Lanes = decltype(SquareNode::lanes);

  PartialSquares(const Tensor& x, std::int64_t first_element, std::span<const ElementRange> without)
      : x_(x), first_element_(first_element), without_(without) {}

  // Elements [begin, end) of x, one leaf or less, or 2^height whole ones.
  void compute(std::int64_t begin, std::int64_t end, int height, Lanes& lanes) const {
    const std::span<const ElementRange> left_out = ranges_in(begin, end);
    if (left_out.empty()) {
      HWY_DYNAMIC_DISPATCH(SquaresOfSubtree)(x_.dtype(), x_.raw(), begin, end, height, lanes.data());
    } else if (left_out[0].begin <= first_element_ + begin && left_out[0].end >= first_element_ + end) {
      lanes.fill(0.0);
    } else if (height == 0) {
      compute_leaf(begin, end, left_out, lanes);
    } else {
      const std::int64_t middle = begin + (kSquareLeaf << (height - 1));
      Lanes right;
      compute(begin, middle, height - 1, lanes);
      compute(middle, end, height - 1, right);
      for (std::size_t k = 0; k < lanes.size(); ++k) lanes[k] += right[k];
    }
  }

 private:
  // Those that have elements among [begin, end) of x.
  std::span<const ElementRange> ranges_in(std::int64_t begin, std::int64_t end) const {
    const auto first = std::partition_point(without_.begin(), without_.end(), [&](const ElementRange& range) {
      return range.end <= first_element_ + begin;
    });
    const auto last = std::partition_point(
        first, without_.end(), [&](const ElementRange& range) { return range.begin < first_element_ + end; });
    return {first, last};
  }

  // From a copy with zeros.
  void compute_leaf(std::int64_t begin, std::int64_t end, std::span<const ElementRange> left_out,
                    Lanes& lanes) const {
    const std::int64_t size = size_of(x_.dtype());
    alignas(double) std::array<std::byte, kSquareLeaf * sizeof(float)> copy{};
    std::memcpy(copy.data(), static_cast<const std::byte*>(x_.raw()) + begin * size,
                static_cast<std::size_t>((end - begin) * size));
    for (const ElementRange& range : left_out) {
      const std::int64_t from = std::max(range.begin - first_element_, begin) - begin;
      const std::int64_t to = std::min(range.end - first_element_, end) - begin;
      if (from < to) std::fill_n(copy.data() + from * size, (to - from) * size, std::byte{0});
    }
    HWY_DYNAMIC_DISPATCH(SquaresOfSubtree)(x_.dtype(), copy.data(), 0, end - begin, 0, lanes.data());
  }

  const Tensor& x_;
  std::int64_t first_element_;
  std::span<const ElementRange> without_;
};

}  // namespace

void compute_square_nodes(Stream& stream, const Tensor& x, std::int64_t first_leaf, std::span<SquareNode> nodes,
                          std::span<const ElementRange> without) {
  const PartialSquares squares(x, first_leaf * kSquareLeaf, without);
  const auto count = static_cast<std::int64_t>(nodes.size());
  parallel_ranges(stream, count, x.bytes(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      SquareNode& node = nodes[static_cast<std::size_t>(i)];
      const std::int64_t leaf = (node.index << node.height) - first_leaf;
      const std::int64_t leaves = std::int64_t{1} << node.height;
      squares.compute(leaf * kSquareLeaf, std::min((leaf + leaves) * kSquareLeaf, x.numel()),
                      static_cast<int>(node.height), node.lanes);
    }
  });
}

}  // namespace meshtrain::ops::cpu
#endif
