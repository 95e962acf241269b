#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cross_entropy.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Infinities cannot be subtracted from one another: nothing but -inf so far means a shift of 0.
HWY_INLINE float shift_of(float maximum) {
  return maximum == kMinusInfinity ? 0.0F : maximum;
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

// The denominator of a softmax: sum of e^(x - shift).
struct Denominator {
  float shift;
  double sum;
};

// One walk over the row (Milakov & Gimelshein 2018), the shift renewed once a chunk that stays in the
// first-level cache. A NaN or a +inf makes the sum NaN.
Denominator denominator(const float* x, std::int64_t n) {
  constexpr std::int64_t kChunk = 2048;
  float high = kMinusInfinity;
  double sum = 0.0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t length = std::min(kChunk, n - begin);
    const float old_shift = shift_of(high);
    high = std::max(high, maximum(x + begin, length));
    const float shift = shift_of(high);
    if (sum != 0.0) sum *= std::exp(static_cast<double>(old_shift) - static_cast<double>(shift));
    const Vec shifts = set(shift);
    const auto terms = [&](std::int64_t i, auto part)
                           HWY_ATTR { return std::array{exp(hn::Sub(load(x + begin + i, part), shifts))}; };
    sum += static_cast<double>(sums<1>(length, terms)[0]);
  }
  return {shift_of(high), sum};
}

// Writes behind what it reads, so `to` may start where `x` does when T is no wider.
template <class T>
void write_gradient(const float* x, const Denominator& d, float scale, std::int64_t vocab, std::int64_t width,
                    T* to) {
  const Vec shift = set(d.shift);
  const Vec factor = set(static_cast<float>(static_cast<double>(scale) / d.sum));
  for_each_vector(vocab, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(exp(hn::Sub(load(x + i, part), shift)), factor), to + i, part);
  });
  std::fill(to + vocab, to + width, T(0.0F));
}

template <class T>
void cross_entropy_rows(const CrossEntropy& args, const Rows& logits, const Rows& dlogits, std::int64_t begin,
                        std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t target = args.targets.data<std::int32_t>()[r];
    float& loss = args.losses.data<float>()[r];
    T* gradient = dlogits.defined() ? dlogits.row<T>(r) : nullptr;
    if (target == kIgnoredTarget) {
      loss = 0.0F;
      if (gradient != nullptr) std::fill_n(gradient, logits.width(), T(0.0F));
      continue;
    }
    const float* x = logits.row<float>(r);
    const Denominator d = denominator(x, args.vocab);
    const double loss_value = static_cast<double>(d.shift) - static_cast<double>(x[target]) + std::log(d.sum);
    loss = static_cast<float>(loss_value);
    if (gradient == nullptr) continue;
    write_gradient(x, d, args.scale, args.vocab, logits.width(), gradient);
    // expm1, since the probability of the target comes close to 1.
    gradient[target] = T(static_cast<float>(std::expm1(-loss_value) * static_cast<double>(args.scale)));
  }
}

}  // namespace

void CrossEntropyRows(const CrossEntropy& args, const Rows& logits, const Rows& dlogits, std::int64_t begin,
                      std::int64_t end) {
  with_float_type(args.dlogits.dtype(),
                  [&]<class T>(T) HWY_ATTR { cross_entropy_rows<T>(args, logits, dlogits, begin, end); });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(CrossEntropyRows);

void cross_entropy(Stream& stream, const CrossEntropy& args) {
  const Rows logits(args.logits);
  const Rows dlogits(args.dlogits);
  const std::int32_t* targets = args.targets.data<std::int32_t>();
  check(std::all_of(targets, targets + logits.count(),
                    [&](std::int32_t t) { return t == kIgnoredTarget || (t >= 0 && t < args.vocab); }),
        "cross_entropy: a target is neither ignored nor below vocab");
  parallel_ranges(stream, logits.count(), args.logits.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(args, logits, dlogits, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
