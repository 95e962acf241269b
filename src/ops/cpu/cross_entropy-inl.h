// What the dense and the sharded cross-entropy share: the softmax of a row, or of a shard's part of it.
// Included as simd-inl.h is.
// clang-format off: the guard must toggle, once per target.
#if defined(MESHTRAIN_OPS_CPU_CROSS_ENTROPY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHTRAIN_OPS_CPU_CROSS_ENTROPY_INL_H_
#undef MESHTRAIN_OPS_CPU_CROSS_ENTROPY_INL_H_
#else
#define MESHTRAIN_OPS_CPU_CROSS_ENTROPY_INL_H_
#endif
// clang-format on

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Infinities cannot be subtracted from one another: nothing but -inf so far means a shift of 0.
HWY_INLINE float shift_of(float maximum) {
  return maximum == kMinusInfinity ? 0.0F : maximum;
}

// What a sum of e^(x - old_shift) is with another shift. A sum of nothing has no shift: the factor may
// overflow.
HWY_INLINE double shifted(double sum, float old_shift, float shift) {
  if (sum == 0.0) return 0.0;
  return sum * std::exp(static_cast<double>(old_shift) - static_cast<double>(shift));
}

HWY_INLINE float maximum(const float* x, std::int64_t n) {
  Vec high0 = set(kMinusInfinity);
  Vec high1 = high0;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    high0 = hn::Max(high0, load(x + i));
    high1 = hn::Max(high1, load(x + i + kLanes));
  }
  float high = max_of_lanes(hn::Max(high0, high1));
  for (; i < n; ++i) high = std::max(high, x[i]);
  return high;
}

// The denominator of a softmax: sum of e^(x - shift). Where a NaN hides the largest value, the sum is NaN.
struct Denominator {
  float high = kMinusInfinity;
  double sum = 0.0;

  float shift() const { return shift_of(high); }
};

// One walk over the row (Milakov & Gimelshein 2018), the shift renewed once a chunk that stays in the
// first-level cache. A NaN or a +inf makes the sum NaN.
HWY_INLINE Denominator denominator(const float* x, std::int64_t n) {
  constexpr std::int64_t kChunk = 2048;
  Denominator d;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t length = std::min(kChunk, n - begin);
    const float old_shift = d.shift();
    d.high = std::max(d.high, maximum(x + begin, length));
    const float shift = d.shift();
    d.sum = shifted(d.sum, old_shift, shift);
    const Vec shifts = set(shift);
    const auto terms = [&](std::int64_t i, auto part)
                           HWY_ATTR { return std::array{exp(hn::Sub(load(x + begin + i, part), shifts))}; };
    d.sum += static_cast<double>(sums<1>(length, terms)[0]);
  }
  return d;
}

HWY_INLINE double loss_of(const Denominator& d, double target_logit) {
  return static_cast<double>(d.shift()) - target_logit + std::log(d.sum);
}

// scale * softmax of `vocab` columns, zeros up to `width`. Writes behind what it reads, so `to` may start where
// `x` does when T is no wider.
template <class T>
HWY_INLINE void write_gradient(const float* x, const Denominator& d, float scale, std::int64_t vocab,
                               std::int64_t width, T* to) {
  const Vec shift = set(d.shift());
  const Vec factor = set(static_cast<float>(static_cast<double>(scale) / d.sum));
  for_each_vector(vocab, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(exp(hn::Sub(load(x + i, part), shift)), factor), to + i, part);
  });
  std::fill(to + vocab, to + width, T(0.0F));
}

// scale * (softmax - 1) of the target. expm1, since its probability comes close to 1.
HWY_INLINE float target_gradient(double loss, float scale) {
  return static_cast<float>(std::expm1(-loss) * static_cast<double>(scale));
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
