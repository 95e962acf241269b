#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#ifndef MESHTRAIN_COMM_REDUCE_JOB_
#define MESHTRAIN_COMM_REDUCE_JOB_
namespace meshtrain {

struct ReduceJob {
  std::span<const std::byte* const> in;
  std::span<std::byte* const> out;
  bool average = false;
  bool streaming = false;  // every output is then aligned to 64 bytes
};

}  // namespace meshtrain
#endif

HWY_BEFORE_NAMESPACE();
namespace meshtrain::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

enum class Rule : std::uint8_t { kAdd, kMin, kMax };

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, BF16> || std::is_same_v<T, F16>;
// What elements of T are added in.
template <class T>
using Sum = std::conditional_t<kIsHalf<T>, float, T>;

template <class D>
using Bits16 = hn::Rebind<std::uint16_t, D>;

template <class D>
HWY_INLINE hn::Vec<D> widen(D d, BF16 /*format*/, hn::Vec<Bits16<D>> bits) {
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
}

// As bf16_bits() of base/float16.h.
template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow(D /*d*/, BF16 /*format*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> u;
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(u, 0x7FFFU)), odd);
  const auto quiet = hn::Or(bits, hn::Set(u, 0x400000U));
  const auto result = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), quiet, rounded);
  // An arithmetic shift leaves a value that the signed, saturating narrowing keeps as it is.
  const auto high = hn::ShiftRight<16>(hn::BitCast(hn::RebindToSigned<D>(), result));
  return hn::BitCast(Bits16<D>(), hn::DemoteTo(hn::Rebind<std::int16_t, D>(), high));
}

template <class D>
HWY_INLINE hn::Vec<D> widen(D d, F16 /*format*/, hn::Vec<Bits16<D>> bits) {
#if HWY_TARGET <= HWY_AVX2
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else
  alignas(64) std::array<std::uint16_t, hn::MaxLanes(D())> from;
  alignas(64) std::array<float, hn::MaxLanes(D())> to;
  hn::Store(bits, Bits16<D>(), from.data());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = float_from_f16(from[i]);
  return hn::Load(d, to.data());
#endif
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow(D d, F16 /*format*/, hn::Vec<D> v) {
#if HWY_TARGET <= HWY_AVX2
  (void)d;
  return hn::BitCast(Bits16<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
#else
  alignas(64) std::array<float, hn::MaxLanes(D())> from;
  alignas(64) std::array<std::uint16_t, hn::MaxLanes(D())> to;
  hn::Store(v, d, from.data());
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = f16_bits(from[i]);
  return hn::Load(Bits16<D>(), to.data());
#endif
}

template <class T, class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* p) {
  if constexpr (kIsHalf<T>) {
    return widen(d, T(), hn::LoadU(Bits16<D>(), reinterpret_cast<const std::uint16_t*>(p)));
  } else {
    return hn::LoadU(d, reinterpret_cast<const T*>(p));
  }
}

template <class T, class D>
HWY_INLINE void store(hn::Vec<D> v, D d, std::byte* p, bool streaming) {
  const auto put = [streaming](auto value, auto tag, auto* to) HWY_ATTR {
    if (streaming) {
      hn::Stream(value, tag, to);
    } else {
      hn::StoreU(value, tag, to);
    }
  };
  if constexpr (kIsHalf<T>) {
    put(narrow(d, T(), v), Bits16<D>(), reinterpret_cast<std::uint16_t*>(p));
  } else {
    put(v, d, reinterpret_cast<T*>(p));
  }
}

template <Rule rule, class D>
HWY_INLINE hn::Vec<D> combine(hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (rule == Rule::kAdd) {
    return hn::Add(a, b);
  } else if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    const auto better = rule == Rule::kMin ? hn::Lt(b, a) : hn::Lt(a, b);
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Or(better, hn::IsNaN(b)), b, a));
  } else {
    return rule == Rule::kMin ? hn::Min(a, b) : hn::Max(a, b);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> divide(D d, hn::Vec<D> v, std::size_t by) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_floating_point_v<T>) {
    return hn::Div(v, hn::Set(d, static_cast<T>(by)));
  } else {
    alignas(64) std::array<T, hn::MaxLanes(D())> lanes;
    hn::Store(v, d, lanes.data());
    for (T& x : lanes) x = static_cast<T>(static_cast<std::int64_t>(x) / static_cast<std::int64_t>(by));
    return hn::Load(d, lanes.data());
  }
}

// The tree without its levels: a binary counter. After k values the stack holds one partial sum for each
// set bit of k; what is left at the end is added from the right, as odd ones out move up.
template <Rule rule, class T, std::size_t kUnroll, class D>
HWY_INLINE std::array<hn::Vec<D>, kUnroll> tree(D d, const ReduceJob& job, std::int64_t offset) {
  constexpr std::size_t kStep = hn::MaxLanes(D()) * sizeof(T);
  constexpr std::size_t kMaxDepth = 32;
  using Row = std::array<hn::Vec<D>, kUnroll>;
  const auto load_row = [&](std::size_t k) HWY_ATTR {
    Row row;
    for (std::size_t u = 0; u < kUnroll; ++u) row[u] = load<T>(d, job.in[k] + offset + u * kStep);
    return row;
  };
  const auto add = [](Row& a, const Row& b) HWY_ATTR {
    for (std::size_t u = 0; u < kUnroll; ++u) a[u] = combine<rule, D>(a[u], b[u]);
  };
  if (job.in.size() == 2) {
    Row row = load_row(0);
    add(row, load_row(1));
    return row;
  }
  std::array<Row, kMaxDepth> stack;
  std::size_t depth = 0;
  for (std::size_t k = 0; k < job.in.size(); ++k) {
    stack[depth++] = load_row(k);
    for (std::size_t full = k; (full & 1U) != 0; full >>= 1U) {
      --depth;
      add(stack[depth - 1], stack[depth]);
    }
  }
  for (; depth > 1; --depth) add(stack[depth - 2], stack[depth - 1]);
  return stack[0];
}

// Elements [begin, end) in steps; returns where less than a step is left.
template <Rule rule, class T, std::size_t kUnroll, class D>
std::int64_t reduce_steps(D d, const ReduceJob& job, std::int64_t begin, std::int64_t end) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  constexpr auto kStep = static_cast<std::int64_t>(kUnroll * kLanes);
  for (; begin + kStep <= end; begin += kStep) {
    const auto offset = begin * static_cast<std::int64_t>(sizeof(T));
    auto row = tree<rule, T, kUnroll>(d, job, offset);
    if (job.average) {
      for (auto& v : row) v = divide(d, v, job.in.size());
    }
    for (std::byte* out : job.out) {
      for (std::size_t u = 0; u < kUnroll; ++u) {
        store<T>(row[u], d, out + offset + u * kLanes * sizeof(T), job.streaming);
      }
    }
  }
  return begin;
}

template <Rule rule, class T>
void reduce_all(const ReduceJob& job, std::int64_t count) {
  const hn::ScalableTag<Sum<T>> vector;
  std::int64_t done = reduce_steps<rule, T, 4>(vector, job, 0, count);
  ReduceJob rest = job;
  rest.streaming = false;
  reduce_steps<rule, T, 1>(hn::CappedTag<Sum<T>, 1>(), rest, done, count);
}

template <class T>
void reduce_by(ReduceOp op, const ReduceJob& job, std::int64_t count) {
  if (op == ReduceOp::kMin) return reduce_all<Rule::kMin, T>(job, count);
  if (op == ReduceOp::kMax) return reduce_all<Rule::kMax, T>(job, count);
  reduce_all<Rule::kAdd, T>(job, count);
}

}  // namespace

void ReduceElements(const ReduceJob& job, std::int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kF32:
      return reduce_by<float>(op, job, count);
    case DType::kF64:
      return reduce_by<double>(op, job, count);
    case DType::kBF16:
      return reduce_by<BF16>(op, job, count);
    case DType::kF16:
      return reduce_by<F16>(op, job, count);
    case DType::kI32:
      return reduce_by<std::int32_t>(op, job, count);
    case DType::kI64:
      return reduce_by<std::int64_t>(op, job, count);
    case DType::kU8:
      return reduce_by<std::uint8_t>(op, job, count);
  }
}

// `to` on a multiple of 64, `bytes` too.
void StreamBytes(const std::byte* from, std::byte* to, std::int64_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<std::uint8_t>()));
  const auto* in = reinterpret_cast<const std::uint8_t*>(from);
  auto* out = reinterpret_cast<std::uint8_t*>(to);
  for (std::int64_t i = 0; i < bytes; i += kStep) hn::Stream(hn::LoadU(d, in + i), d, out + i);
}

}  // namespace meshtrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain {

HWY_EXPORT(ReduceElements);
HWY_EXPORT(StreamBytes);

namespace {

constexpr std::int64_t kStreamUnit = 64;

bool can_stream(const std::byte* to) {
  return std::bit_cast<std::uintptr_t>(to) % kStreamUnit == 0;
}

}  // namespace

void copy_bytes(const std::byte* from, std::byte* to, std::int64_t bytes, Stores stores) {
  if (bytes <= 0 || from == to) return;
  std::int64_t done = 0;
  if (stores == Stores::kStreaming && can_stream(to)) {
    done = bytes / kStreamUnit * kStreamUnit;
    HWY_DYNAMIC_DISPATCH(StreamBytes)(from, to, done);
    hwy::FlushStream();
  }
  std::memcpy(to + done, from + done, static_cast<std::size_t>(bytes - done));
}

void reduce(std::span<const std::byte* const> in, std::span<std::byte* const> out, std::int64_t count,
            DType dtype, ReduceOp op, Stores stores) {
  if (in.size() == 1) {
    for (std::byte* to : out) copy_bytes(in[0], to, count * size_of(dtype), stores);
    return;
  }
  const bool streaming = stores == Stores::kStreaming && std::all_of(out.begin(), out.end(), can_stream);
  const ReduceJob job{.in = in, .out = out, .average = op == ReduceOp::kAvg, .streaming = streaming};
  HWY_DYNAMIC_DISPATCH(ReduceElements)(job, count, dtype, op);
  if (streaming) hwy::FlushStream();
}

}  // namespace meshtrain
#endif  // HWY_ONCE
