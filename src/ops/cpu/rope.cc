#include "ops/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cc"
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

// (first, second) = (first cos - second sin, second cos + first sin), sin times `sign`.
template <class T>
HWY_INLINE void turn(T* first, std::int64_t half, const float* cosines, const float* sines, float sign) {
  T* second = first + half;
  for_each_vector(half, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec a = load(first + i, part);
    const Vec b = load(second + i, part);
    const Vec c = load(cosines + i, part);
    const Vec s = hn::Mul(load(sines + i, part), set(sign));
    store(hn::NegMulAdd(b, s, hn::Mul(a, c)), first + i, part);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), second + i, part);
  });
}

}  // namespace

// Rows of x are (b, t, head); [begin, end) counts pairs (b, t).
void RopeRows(const Tensor& x, const float* cos_sin, float sign, std::int64_t begin, std::int64_t end) {
  with_float_type(x.dtype(), [&]<class T>(T) HWY_ATTR {
    const std::int64_t half = x.dim(3) / 2;
    for (std::int64_t bt = begin; bt < end; ++bt) {
      const std::int64_t b = bt / x.dim(1);
      const std::int64_t t = bt % x.dim(1);
      const float* cosines = cos_sin + t * 2 * half;
      T* token = static_cast<T*>(x.raw()) + b * x.stride(0) + t * x.stride(1);
      for (std::int64_t h = 0; h < x.dim(2); ++h) {
        turn(token + h * x.stride(2), half, cosines, cosines + half, sign);
      }
    }
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(RopeRows);

void rope(Stream& stream, const Tensor& x, const Tensor& cos_sin, RopeDirection direction) {
  const float sign = direction == RopeDirection::kForward ? 1.0F : -1.0F;
  parallel_ranges(stream, x.dim(0) * x.dim(1), 2 * x.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(RopeRows)(x, cos_sin.data<float>(), sign, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
