// Normal numbers of a random stream, many at once: Philox, the logarithm and the cosine over vectors of
// double. The sums differ from those of base/box_muller.cc in their last bits; the floats do not, since
// each is either certain or computed there.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numbers>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/fill_normal.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "base/box_muller.h"
#include "base/philox.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

using F64 = hn::ScalableTag<double>;
using U64 = hn::RebindToUnsigned<F64>;
using F32OfF64 = hn::Rebind<float, F64>;
using Doubles = hn::Vec<F64>;
using Words = hn::Vec<U64>;  // of 32 bits each; the upper half of a lane may hold anything

constexpr std::int64_t kDoubles = hn::MaxLanes(F64());

HWY_INLINE Words word(std::uint64_t value) {
  return hn::Set(U64(), value);
}

// Of the lower halves.
HWY_INLINE Words product(Words a, std::uint32_t b) {
  using U32OfU64 = hn::RepartitionToNarrow<U64>;
  return hn::MulEven(hn::BitCast(U32OfU64(), a), hn::Set(U32OfU64(), b));
}

// The first two words of the blocks of index, index + 1, …
struct TwoWords {
  Words first, second;
};

HWY_INLINE TwoWords philox(const RandomStream& random, std::uint64_t index) {
  const Words lane = hn::Add(word(index), hn::Iota(U64(), 0));
  Words c0 = lane;
  Words c1 = hn::ShiftRight<32>(lane);
  Words c2 = word(random.purpose());
  Words c3 = word(random.purpose() >> 32U);
  PhiloxKey key = random.key();
  for (int round = 0; round < 10; ++round) {
    const Words product0 = product(c0, 0xD2511F53U);
    const Words product1 = product(c2, 0xCD9E8D57U);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), word(key[0]));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), word(key[1]));
    c1 = product1;
    c3 = product0;
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  const Words mask = word(0xFFFFFFFFU);
  return {hn::And(c0, mask), hn::And(c1, mask)};
}

// value - minus, exactly; value < 2^52, and so is |minus|.
HWY_INLINE Doubles to_double(Words value, double minus) {
  const Words bits = hn::Or(value, hn::BitCast(U64(), hn::Set(F64(), 0x1p52)));
  return hn::Sub(hn::BitCast(F64(), bits), hn::Set(F64(), 0x1p52 + minus));
}

template <std::size_t N>
HWY_INLINE Doubles polynomial(const double (&coefficients)[N], Doubles x) {
  Doubles sum = hn::Set(F64(), coefficients[N - 1]);
  for (std::size_t i = N - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(F64(), coefficients[i]));
  return sum;
}

// -2 ln u, u = (a + 1/2) / 2^32.
HWY_INLINE Doubles minus_two_log(Words a) {
  // 2a + 1 = m 2^e with m in [sqrt(1/2), sqrt(2)): the bits from those of sqrt(1/2) on count e.
  const Words bits = hn::BitCast(U64(), to_double(hn::Or(hn::ShiftLeft<1>(a), word(1)), 0.0));
  const Words e = hn::ShiftRight<52>(hn::Sub(bits, word(0x3FE6A09E667F3BCDU)));
  const Doubles m = hn::BitCast(F64(), hn::Sub(bits, hn::ShiftLeft<52>(e)));
  const Doubles one = hn::Set(F64(), 1.0);
  const Doubles s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const Doubles half_log_m = hn::Mul(s, polynomial(box_muller_parts::kAtanh, hn::Mul(s, s)));
  const Doubles log_of_power = hn::Mul(to_double(e, 33.0), hn::Set(F64(), -2.0 * std::numbers::ln2));
  return hn::NegMulAdd(half_log_m, hn::Set(F64(), 4.0), log_of_power);
}

// cos(2 pi b / 2^32).
HWY_INLINE Doubles cosine(Words b) {
  // In turns b is quarter / 4 + offset / 2^32, |offset| <= 2^29. Quarter 4 is quarter 0.
  const Words shifted = hn::Add(b, word(1U << 29U));
  const Words quarter = hn::ShiftRight<30>(shifted);
  const Doubles offset = to_double(hn::And(shifted, word((1U << 30U) - 1)), 0x1p29);
  const Doubles x = hn::Mul(offset, hn::Set(F64(), std::numbers::pi * 0x1p-31));
  const Doubles square = hn::Mul(x, x);
  const Doubles sine = hn::Mul(x, polynomial(box_muller_parts::kSin, square));
  const auto odd = hn::TestBit(quarter, word(1));
  const Doubles value =
      hn::IfThenElse(hn::RebindMask(F64(), odd), sine, polynomial(box_muller_parts::kCos, square));
  // Negative in quarters 1 and 2: bit 1 of quarter + 1.
  const Words sign = hn::ShiftLeft<62>(hn::And(hn::Add(quarter, word(1)), word(2)));
  return hn::Xor(value, hn::BitCast(F64(), sign));
}

// Writes kDoubles numbers from `index` on.
HWY_INLINE void draw(const RandomStream& random, std::uint64_t index, float mean, float deviation, float* out) {
  const TwoWords words = philox(random, index);
  // Adding +0 makes a zero positive.
  const Doubles z = hn::MulAdd(hn::Sqrt(minus_two_log(words.first)), cosine(words.second), hn::Zero(F64()));
  const Doubles error = hn::Mul(z, hn::Set(F64(), box_muller_parts::kErrorBound));
  const F32OfF64 d;
  const auto low = hn::DemoteTo(d, hn::Sub(z, error));
  const auto high = hn::DemoteTo(d, hn::Add(z, error));
  hn::StoreU(hn::Add(hn::Set(d, mean), hn::Mul(hn::Set(d, deviation), low)), d, out);
  if (HWY_LIKELY(hn::AllTrue(d, hn::Eq(low, high)))) return;
  for (std::int64_t i = 0; i < kDoubles; ++i) {
    out[i] = mean + deviation * random.normal(index + static_cast<std::uint64_t>(i));
  }
}

#endif

void FillNormal(const RandomStream& random, std::uint64_t first, std::int64_t count, float mean,
                float deviation, float* out) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + kDoubles <= count; i += kDoubles) {
    draw(random, first + static_cast<std::uint64_t>(i), mean, deviation, out + i);
  }
#endif
  for (; i < count; ++i) out[i] = mean + deviation * random.normal(first + static_cast<std::uint64_t>(i));
}

}  // namespace
}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(FillNormal);

void fill_normal(Stream& stream, const Tensor& out, const RandomStream& random, std::int64_t first_index,
                 float mean, float deviation) {
  // A normal number costs about as much as moving this many floats.
  constexpr std::int64_t kCost = 16;
  parallel_elements(stream, out.numel(), kCost * out.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(FillNormal)
    (random, static_cast<std::uint64_t>(first_index + begin), end - begin, mean, deviation,
     out.data<float>() + begin);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
