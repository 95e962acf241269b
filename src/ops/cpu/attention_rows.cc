#include "ops/cpu/attention_rows.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

// 2^x for x <= 126, relative error below 3e-7; results below 2^-126 come out as 2^-126. NaN stays NaN.
// The integer nearest to x falls out of the addition of 1.5 * 2^23 (Moler); 2^fraction is a minimax
// polynomial of degree 5 on [-1/2, 1/2].
HWY_INLINE Vec exp2(Vec x) {
  const Vec magic = set(12582912.0F);
  const Vec lowest = set(-126.0F);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);
  const Vec shifted = hn::Add(x, magic);
  const Vec f = hn::Sub(x, hn::Sub(shifted, magic));
  Vec p = set(1.3276472e-3F);
  p = hn::MulAdd(p, f, set(9.675541e-3F));
  p = hn::MulAdd(p, f, set(5.550713e-2F));
  p = hn::MulAdd(p, f, set(0.2402212F));
  p = hn::MulAdd(p, f, set(0.69314694F));
  p = hn::MulAdd(p, f, set(1.0F));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(I32(), shifted)), hn::Set(I32(), 127 << 23));
  return hn::Mul(p, hn::BitCast(F32(), power));
}

float max_of(const float* x, std::int64_t n) {
  Vec a = set(x[0]);
  Vec b = a;
  Vec c = a;
  Vec d = a;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = hn::Max(a, load(x + i));
    b = hn::Max(b, load(x + i + kLanes));
    c = hn::Max(c, load(x + i + 2 * kLanes));
    d = hn::Max(d, load(x + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = hn::Max(a, load(x + i));
  float result = max_of_lanes(hn::Max(hn::Max(a, b), hn::Max(c, d)));
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

float min_of(const float* x, std::int64_t n) {
  float result = x[0];
  for (std::int64_t i = 1; i < n; ++i) result = std::min(result, x[i]);
  return result;
}

// Two vectors that follow each other in memory. For bf16 this is cheaper than two single stores; a NaN
// stays one unless all its bits are set.
HWY_INLINE void store_pair(Vec low, Vec high, float* out) {
  store(low, out);
  store(high, out + kLanes);
}
HWY_INLINE void store_pair(Vec low, Vec high, BF16* out) {
#if HWY_TARGET != HWY_SCALAR
  using Pair = hn::RepartitionToNarrow<U32>;
  const auto rounded = [](Vec v) HWY_ATTR {
    const auto bits = hn::BitCast(U32(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1U));
    return hn::BitCast(Pair(), hn::Add(hn::Add(bits, hn::Set(U32(), 0x7FFFU)), odd));
  };
  hn::StoreU(hn::ConcatOdd(Pair(), rounded(high), rounded(low)), Pair(), detail::bits_of(out));
#else
  store(low, out);
  store(high, out + kLanes);
#endif
}

// Writes 2^(x * factor - max) and returns the sum of what it wrote, before rounding.
template <class T>
float exponentials(const float* x, std::int64_t n, float factor, float max, T* out) {
  const Vec scale = set(factor);
  const Vec shift = set(-max);
  Vec low_sum = hn::Zero(F32());
  Vec high_sum = low_sum;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec low = exp2(hn::MulAdd(load(x + i), scale, shift));
    const Vec high = exp2(hn::MulAdd(load(x + i + kLanes), scale, shift));
    store_pair(low, high, out + i);
    low_sum = hn::Add(low_sum, low);
    high_sum = hn::Add(high_sum, high);
  }
  for_each_vector(n - i, [&](std::int64_t offset, auto part) HWY_ATTR {
    const Vec p = exp2(hn::MulAdd(load(x + i + offset, part), scale, shift));
    store(p, out + i + offset, part);
    low_sum = hn::Add(low_sum, zero_outside(p, part));
  });
  return sum_of_lanes(hn::Add(low_sum, high_sum));
}

template <class T>
void softmax_rows(const float* scores, std::int64_t rows, std::int64_t width, const std::int64_t* visible,
                  float scale, bool first, T* weights, std::int64_t weights_width, const SoftmaxState& s) {
  const float factor = scale * kLog2E;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* x = scores + r * width;
    T* out = weights + r * weights_width;
    const std::int64_t n = visible[r];
    std::fill(out + n, out + weights_width, T());
    if (n == 0) {
      s.rescale[r] = 1.0F;
      continue;
    }
    const float highest = factor * (factor >= 0.0F ? max_of(x, n) : min_of(x, n));
    const float max = first ? highest : std::max(highest, s.max[r]);
    const float sum = exponentials(x, n, factor, max, out);
    s.rescale[r] = first ? 0.0F : std::exp2(s.max[r] - max);
    s.sum[r] = first ? sum : s.sum[r] * s.rescale[r] + sum;
    s.max[r] = max;
  }
}

void online_softmax_on_target(const float* scores, std::int64_t rows, std::int64_t width,
                              const std::int64_t* visible, float scale, bool first, Operand operand,
                              void* weights, std::int64_t weights_width, const SoftmaxState& s) {
  if (operand == Operand::kBF16) {
    softmax_rows(scores, rows, width, visible, scale, first, static_cast<BF16*>(weights), weights_width, s);
  } else {
    softmax_rows(scores, rows, width, visible, scale, first, static_cast<float*>(weights), weights_width, s);
  }
}

void scale_rows_on_target(float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                          const float* factor) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Vec f = set(factor[r]);
    float* row = x + r * stride;
    for_each_vector(width, [&](std::int64_t i, auto part)
                               HWY_ATTR { store(hn::Mul(load(row + i, part), f), row + i, part); });
  }
}

// The weights at positions from i on of one key, and the gradients of their scores.
struct WeightsAndGradients {
  Vec weights, d_scores;
};

// One key's row.
struct GradientRow {
  const float* scores;
  const float* d_weights;
  const float* lse;
  const float* delta;
  Vec factor, scale;

  template <class Extent>
  HWY_INLINE WeightsAndGradients at(std::int64_t i, Extent part) const {
    const Vec p = exp2(hn::MulSub(load(scores + i, part), factor, load(lse + i, part)));
    const Vec centred = hn::Sub(load(d_weights + i, part), load(delta + i, part));
    return {p, hn::Mul(hn::Mul(p, scale), centred)};
  }
};

template <class T>
void gradient_rows(const ScoreGradients& g) {
  for (std::int64_t k = 0; k < g.keys; ++k) {
    const std::int64_t begin = std::clamp<std::int64_t>(g.first + k, 0, g.queries);
    T* weights = static_cast<T*>(g.weights) + k * g.queries;
    T* d_scores = static_cast<T*>(g.d_scores) + k * g.queries;
    std::fill(weights, weights + begin, T());
    std::fill(d_scores, d_scores + begin, T());
    const GradientRow row = {
        g.scores + k * g.width, g.d_weights + k * g.width, g.lse, g.delta, set(g.scale * kLog2E), set(g.scale)};
    std::int64_t i = begin;
    for (; i + 2 * kLanes <= g.queries; i += 2 * kLanes) {
      const auto low = row.at(i, Whole());
      const auto high = row.at(i + kLanes, Whole());
      store_pair(low.weights, high.weights, weights + i);
      store_pair(low.d_scores, high.d_scores, d_scores + i);
    }
    for_each_vector(g.queries - i, [&](std::int64_t offset, auto part) HWY_ATTR {
      const auto rest = row.at(i + offset, part);
      store(rest.weights, weights + i + offset, part);
      store(rest.d_scores, d_scores + i + offset, part);
    });
  }
}

void softmax_gradient_on_target(const ScoreGradients& g, Operand operand) {
  if (operand == Operand::kBF16) {
    gradient_rows<BF16>(g);
  } else {
    gradient_rows<float>(g);
  }
}

template <class T>
void row_dots_of(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, std::int64_t rows,
                 std::int64_t width, float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(a) + r * a_stride;
    const T* y = static_cast<const T*>(b) + r * b_stride;
    out[r] = sums<1>(width, [&](std::int64_t i, auto part) HWY_ATTR {
      return std::array<Vec, 1>{hn::Mul(load(x + i, part), load(y + i, part))};
    })[0];
  }
}

void row_dots_on_target(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, DType dtype,
                        std::int64_t rows, std::int64_t width, float* out) {
  switch (dtype) {
    case DType::kBF16:
      return row_dots_of<BF16>(a, a_stride, b, b_stride, rows, width, out);
    case DType::kF16:
      return row_dots_of<F16>(a, a_stride, b, b_stride, rows, width, out);
    default:
      return row_dots_of<float>(a, a_stride, b, b_stride, rows, width, out);
  }
}

}  // namespace
}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(online_softmax_on_target);
HWY_EXPORT(scale_rows_on_target);
HWY_EXPORT(softmax_gradient_on_target);
HWY_EXPORT(row_dots_on_target);

void online_softmax(const float* scores, std::int64_t rows, std::int64_t width, const std::int64_t* visible,
                    float scale, bool first, Operand operand, void* weights, std::int64_t weights_width,
                    const SoftmaxState& state) {
  HWY_DYNAMIC_DISPATCH(online_softmax_on_target)
  (scores, rows, width, visible, scale, first, operand, weights, weights_width, state);
}

void scale_rows(float* x, std::int64_t stride, std::int64_t rows, std::int64_t width, const float* factor) {
  HWY_DYNAMIC_DISPATCH(scale_rows_on_target)(x, stride, rows, width, factor);
}

void softmax_gradient(const ScoreGradients& g, Operand operand) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_on_target)(g, operand);
}

void row_dots(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, DType dtype,
              std::int64_t rows, std::int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(row_dots_on_target)(a, a_stride, b, b_stride, dtype, rows, width, out);
}

}  // namespace meshtrain::ops::cpu
#endif  // HWY_ONCE
