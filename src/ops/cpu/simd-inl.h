// Vectors of fp32 for the kernels of this folder, over Highway. A kernel file includes this after
// hwy/foreach_target.h, so that all of it is compiled once per instruction set; the layout of such a
// file is described in Highway's README ("dynamic dispatch").
//
// load/store convert from and to fp32, bf16 and fp16 memory; stores round to nearest even. Pointers need
// only the alignment of their element. `Part{n}` variants touch the first n < kLanes elements alone.
// clang-format off: the guard must toggle, once per target.
#if defined(MESHTRAIN_OPS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHTRAIN_OPS_CPU_SIMD_INL_H_
#undef MESHTRAIN_OPS_CPU_SIMD_INL_H_
#else
#define MESHTRAIN_OPS_CPU_SIMD_INL_H_
#endif
// clang-format on

#include <hwy/highway.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "base/float16.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using I16 = hn::Rebind<std::int16_t, F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using Half = hn::Rebind<hwy::float16_t, F32>;
using Vec = hn::Vec<F32>;

inline constexpr std::int64_t kLanes = hn::MaxLanes(F32());

// How much of a vector lies in memory: all of it, or its first `lanes` elements.
struct Whole {};
struct Part {
  std::int64_t lanes;
};

// Calls body(i, Whole{}) for i = 0, kLanes, … and body(i, Part{rest}) for what remains of n.
template <class Body>
HWY_INLINE void for_each_vector(std::int64_t n, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Whole{});
  if (kLanes > 1 && i < n) body(i, Part{n - i});
}

namespace detail {

// Lanes beyond `lanes` are zero.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_part(D d, const T* from, std::int64_t lanes) {
#if HWY_TARGET <= HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(lanes)), d, from);
#else
  alignas(64) std::array<T, static_cast<std::size_t>(kLanes)> copy{};
  std::memcpy(copy.data(), from, static_cast<std::size_t>(lanes) * sizeof(T));
  return hn::Load(d, copy.data());
#endif
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_part(hn::Vec<D> v, D d, T* to, std::int64_t lanes) {
#if HWY_TARGET <= HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(lanes)), d, to);
#else
  alignas(64) std::array<T, static_cast<std::size_t>(kLanes)> copy;
  hn::Store(v, d, copy.data());
  std::memcpy(to, copy.data(), static_cast<std::size_t>(lanes) * sizeof(T));
#endif
}

HWY_INLINE const std::uint16_t* bits_of(const BF16* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}
HWY_INLINE const std::uint16_t* bits_of(const F16* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}
HWY_INLINE std::uint16_t* bits_of(BF16* p) {
  return reinterpret_cast<std::uint16_t*>(p);
}
HWY_INLINE std::uint16_t* bits_of(F16* p) {
  return reinterpret_cast<std::uint16_t*>(p);
}

HWY_INLINE Vec widen(BF16 /*format*/, hn::Vec<U16> bits) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

HWY_INLINE Vec widen(F16 /*format*/, hn::Vec<U16> bits) {
#if HWY_TARGET <= HWY_AVX2
  return hn::PromoteTo(F32(), hn::BitCast(Half(), bits));
#else
  std::array<std::uint16_t, static_cast<std::size_t>(kLanes)> in;
  std::array<float, static_cast<std::size_t>(kLanes)> out;
  hn::StoreU(bits, U16(), in.data());
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = float_from_f16(in[i]);
  return hn::LoadU(F32(), out.data());
#endif
}

// As bf16_bits() of base/float16.h.
HWY_INLINE hn::Vec<U16> narrow(BF16 /*format*/, Vec v) {
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7FFFU)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000U));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(v));
  // An arithmetic shift leaves a value that the signed, saturating narrowing keeps as it is.
  const auto high = hn::ShiftRight<16>(hn::BitCast(I32(), hn::IfThenElse(is_nan, quiet, rounded)));
  return hn::BitCast(U16(), hn::DemoteTo(I16(), high));
}

HWY_INLINE hn::Vec<U16> narrow(F16 /*format*/, Vec v) {
#if HWY_TARGET <= HWY_AVX2
  return hn::BitCast(U16(), hn::DemoteTo(Half(), v));
#else
  std::array<float, static_cast<std::size_t>(kLanes)> in;
  std::array<std::uint16_t, static_cast<std::size_t>(kLanes)> out;
  hn::StoreU(v, F32(), in.data());
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = f16_bits(in[i]);
  return hn::LoadU(U16(), out.data());
#endif
}

}  // namespace detail

HWY_INLINE Vec load(const float* p, Whole = {}) {
  return hn::LoadU(F32(), p);
}
HWY_INLINE Vec load(const float* p, Part part) {
  return detail::load_part(F32(), p, part.lanes);
}
template <class T>
HWY_INLINE Vec load(const T* p, Whole = {}) {
  return detail::widen(T(), hn::LoadU(U16(), detail::bits_of(p)));
}
template <class T>
HWY_INLINE Vec load(const T* p, Part part) {
  return detail::widen(T(), detail::load_part(U16(), detail::bits_of(p), part.lanes));
}

HWY_INLINE void store(Vec v, float* p, Whole = {}) {
  hn::StoreU(v, F32(), p);
}
HWY_INLINE void store(Vec v, float* p, Part part) {
  detail::store_part(v, F32(), p, part.lanes);
}
template <class T>
HWY_INLINE void store(Vec v, T* p, Whole = {}) {
  hn::StoreU(detail::narrow(T(), v), U16(), detail::bits_of(p));
}
template <class T>
HWY_INLINE void store(Vec v, T* p, Part part) {
  detail::store_part(detail::narrow(T(), v), U16(), detail::bits_of(p), part.lanes);
}

// The value that load() gives after store() as T.
HWY_INLINE Vec rounded_to(float /*format*/, Vec v) {
  return v;
}
template <class T>
HWY_INLINE Vec rounded_to(T format, Vec v) {
  return detail::widen(format, detail::narrow(format, v));
}

HWY_INLINE Vec zero_outside(Vec v, Whole /*all*/) {
  return v;
}
HWY_INLINE Vec zero_outside(Vec v, Part part) {
  return hn::IfThenElseZero(hn::FirstN(F32(), static_cast<std::size_t>(part.lanes)), v);
}

HWY_INLINE Vec set(float value) {
  return hn::Set(F32(), value);
}
HWY_INLINE float sum_of_lanes(Vec v) {
  return hn::GetLane(hn::SumOfLanes(F32(), v));
}
HWY_INLINE float max_of_lanes(Vec v) {
  return hn::GetLane(hn::MaxOfLanes(F32(), v));
}

// K sums over [0, n) at once: terms(i, part) returns the K vectors of one position; its lanes outside
// `part` are ignored. The order of additions depends on n and the instruction set alone.
template <std::size_t K, class Terms>
HWY_INLINE std::array<float, K> sums(std::int64_t n, const Terms& terms) {
  constexpr std::size_t kUnroll = K == 1 ? 4 : 2;
  constexpr auto kStep = static_cast<std::int64_t>(kUnroll) * kLanes;
  std::array<std::array<Vec, K>, kUnroll> total;
  for (auto& row : total) {
    for (Vec& v : row) v = hn::Zero(F32());
  }
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (std::size_t u = 0; u < kUnroll; ++u) {
      const std::array<Vec, K> term = terms(i + static_cast<std::int64_t>(u) * kLanes, Whole{});
      for (std::size_t k = 0; k < K; ++k) total[u][k] = hn::Add(total[u][k], term[k]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    const std::array<Vec, K> term = terms(i, Whole{});
    for (std::size_t k = 0; k < K; ++k) total[0][k] = hn::Add(total[0][k], term[k]);
  }
  if (i < n) {
    const Part part{n - i};
    const std::array<Vec, K> term = terms(i, part);
    for (std::size_t k = 0; k < K; ++k) total[1][k] = hn::Add(total[1][k], zero_outside(term[k], part));
  }
  std::array<float, K> result;
  for (std::size_t k = 0; k < K; ++k) {
    Vec v = hn::Add(total[0][k], total[1][k]);
    if constexpr (kUnroll == 4) v = hn::Add(v, hn::Add(total[2][k], total[3][k]));
    result[k] = sum_of_lanes(v);
  }
  return result;
}

namespace detail {

// x held in [low, high]; what a NaN becomes is for keep_nan() to settle.
HWY_INLINE Vec hold(Vec x, float low, float high) {
  return hn::Min(set(high), hn::Max(set(low), x));
}

// `result`, computed from hold(x, …), but NaN where x is.
HWY_INLINE Vec keep_nan(Vec x, Vec result) {
#if HWY_TARGET <= HWY_AVX2
  // Min and Max of x86 give their second operand when either is NaN, so that hold() has kept it.
  (void)x;
  return result;
#else
  return hn::IfThenElse(hn::IsNaN(x), x, result);
#endif
}

// v * 2^power for whole powers in [-150, 128], rounded once.
HWY_INLINE Vec scaled_by_power_of_two(Vec v, Vec power) {
#if HWY_TARGET <= HWY_AVX3
  return Vec{_mm512_scalef_ps(v.raw, power.raw)};
#else
  // In two factors, neither of which leaves the range of normal numbers.
  const I32 d;
  const auto whole = hn::ConvertTo(d, power);
  const auto half = hn::ShiftRight<1>(whole);
  const auto rest = hn::Sub(whole, half);
  const auto bias = hn::Set(d, 127);
  v = hn::Mul(v, hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(half, bias))));
  return hn::Mul(v, hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Add(rest, bias))));
#endif
}

}  // namespace detail

// e^x, within 1.01 ulp over all floats; subnormal results are kept, overflow gives infinity, a NaN stays one.
// Reduction to |r| <= ln(2)/2 in two steps (Cody & Waite 1980, chapter 6), then the minimax
// polynomial of (e^r - 1 - r) / r^2, degree 4, relative error of e^r below 4e-9 before rounding.
HWY_INLINE Vec exp(Vec x) {
  const Vec held = detail::hold(x, -104.0F, 89.0F);
  const Vec n = hn::Round(hn::Mul(held, set(1.44269504F)));
  Vec r = hn::NegMulAdd(n, set(0.693359375F), held);
  r = hn::NegMulAdd(n, set(-2.12194440e-4F), r);
  Vec p = set(1.38145394e-3F);
  p = hn::MulAdd(p, r, set(8.36874545e-3F));
  p = hn::MulAdd(p, r, set(4.1668389e-2F));
  p = hn::MulAdd(p, r, set(0.166665211F));
  p = hn::MulAdd(p, r, set(0.49999994F));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), set(1.0F));
  return detail::keep_nan(x, detail::scaled_by_power_of_two(p, n));
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
