#include "ops/elementwise.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {

void AddElements(DType dtype, const void* a, const void* b, void* out, std::int64_t begin, std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    const T* x = static_cast<const T*>(a) + begin;
    const T* y = static_cast<const T*>(b) + begin;
    T* to = static_cast<T*>(out) + begin;
    for_each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Add(load(x + i, part), load(y + i, part)), to + i, part);
    });
  });
}

void CastElements(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t begin,
                  std::int64_t end) {
  with_float_type(from_dtype, [&]<class From>(From) HWY_ATTR {
    with_float_type(to_dtype, [&]<class To>(To) HWY_ATTR {
      const From* x = static_cast<const From*>(from) + begin;
      To* y = static_cast<To*>(to) + begin;
      for_each_vector(end - begin,
                      [&](std::int64_t i, auto part) HWY_ATTR { store(load(x + i, part), y + i, part); });
    });
  });
}

void ScaleElements(float* x, float factor, std::int64_t begin, std::int64_t end) {
  for_each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(load(x + begin + i, part), set(factor)), x + begin + i, part);
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {
namespace {

template <class T>
void fill_elements(Stream& stream, const Tensor& out, T value) {
  T* to = static_cast<T*>(out.raw());
  parallel_elements(stream, out.numel(), out.bytes(),
                    [&](std::int64_t begin, std::int64_t end) { std::fill(to + begin, to + end, value); });
}

}  // namespace

HWY_EXPORT(AddElements);
HWY_EXPORT(CastElements);
HWY_EXPORT(ScaleElements);

void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  parallel_elements(stream, out.numel(), 3 * out.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddElements)(a.dtype(), a.raw(), b.raw(), out.raw(), begin, end);
  });
}

void cast(Stream& stream, const Tensor& from, const Tensor& to) {
  parallel_elements(stream, to.numel(), from.bytes() + to.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(CastElements)(from.dtype(), from.raw(), to.dtype(), to.raw(), begin, end);
  });
}

void fill(Stream& stream, const Tensor& out, float value) {
  switch (out.dtype()) {
    case DType::kF32:
      return fill_elements(stream, out, value);
    case DType::kBF16:
      return fill_elements(stream, out, BF16(value));
    case DType::kF16:
      return fill_elements(stream, out, F16(value));
    case DType::kF64:
      return fill_elements(stream, out, static_cast<double>(value));
    case DType::kI32:
      return fill_elements(stream, out, static_cast<std::int32_t>(value));
    case DType::kI64:
      return fill_elements(stream, out, static_cast<std::int64_t>(value));
    case DType::kU8:
      return fill_elements(stream, out, static_cast<std::uint8_t>(value));
  }
}

void touch(Stream& stream, const Tensor& out) {
  constexpr std::int64_t kPage = 4096;  // the smallest; larger ones come with their first byte
  auto* const bytes = static_cast<volatile std::byte*>(out.raw());
  parallel_elements(stream, out.bytes(), out.bytes(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i = (i / kPage + 1) * kPage) bytes[i] = std::byte{0};
  });
}

void scale(Stream& stream, const Tensor& x, float factor) {
  parallel_elements(stream, x.numel(), 2 * x.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScaleElements)(x.data<float>(), factor, begin, end);
  });
}

double sum(Stream& /*stream*/, const Tensor& x) {
  const float* data = x.data<float>();
  return std::accumulate(data, data + x.numel(), 0.0);
}

}  // namespace meshtrain::ops::cpu
#endif
