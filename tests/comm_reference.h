// What collectives must give (communicator.h), element by element and written for clarity, and the inputs
// that the tests of communication use.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace meshtrain::testing {

inline constexpr std::array<DType, 7> kAllTypes = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                                   DType::kI32, DType::kI64, DType::kU8};
inline constexpr std::array<ReduceOp, 4> kAllReduceOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin,
                                                          ReduceOp::kMax};

// Calls visit(T()) with the element type.
template <class Visit>
void with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(float{});
    case DType::kF64:
      return visit(double{});
    case DType::kBF16:
      return visit(BF16{});
    case DType::kF16:
      return visit(F16{});
    case DType::kI32:
      return visit(std::int32_t{});
    case DType::kI64:
      return visit(std::int64_t{});
    case DType::kU8:
      return visit(std::uint8_t{});
  }
}

// bf16 and fp16 are added in fp32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, BF16> || std::is_same_v<T, F16>, float, T>;

template <class S>
S reference_pair(S a, S b, ReduceOp op) {
  if constexpr (std::is_floating_point_v<S>) {
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<S>::quiet_NaN();
  } else if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return static_cast<S>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
  if (op == ReduceOp::kMin) return b < a ? b : a;
  return a < b ? b : a;
}

// values[k] is rank k's. Level by level: neighbours are reduced, an odd one out moves up.
template <class T>
T reference_reduce(const std::vector<T>& values, ReduceOp op) {
  using S = Sum<T>;
  if (values.size() == 1) return values[0];
  std::vector<S> level;
  level.reserve(values.size());
  for (const T value : values) level.push_back(static_cast<S>(value));
  while (level.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      level[kept++] = i + 1 < level.size() ? reference_pair(level[i], level[i + 1], op) : level[i];
    }
    level.resize(kept);
  }
  if (op != ReduceOp::kAvg) return static_cast<T>(level[0]);
  if constexpr (std::is_floating_point_v<S>) {
    return static_cast<T>(level[0] / static_cast<S>(values.size()));
  } else {
    return static_cast<T>(static_cast<std::int64_t>(level[0]) / static_cast<std::int64_t>(values.size()));
  }
}

// Equal bits, or NaN both.
template <class T>
bool same_value(T a, T b) {
  if (std::memcmp(&a, &b, sizeof(T)) == 0) return true;
  if constexpr (std::is_integral_v<T>) return false;
  return std::isnan(static_cast<double>(static_cast<Sum<T>>(a))) &&
         std::isnan(static_cast<double>(static_cast<Sum<T>>(b)));
}

// Mixes bits (SplitMix64, Steele et al. 2014).
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

// Element `index` of rank's input: integers of all bits, so that sums wrap; floats of magnitudes from 2^-6
// to 2^6, so that the order of additions shows. `special` strews in NaN, infinities, zeros of both signs,
// subnormals, and fp16's largest value, whose sums overflow.
template <class T>
T input_element(std::uint64_t seed, int rank, std::int64_t index, bool special) {
  const std::uint64_t bits =
      mix(mix(seed * 4096 + static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(index));
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    using S = Sum<T>;
    if (special) {
      const std::array<S, 8> kSpecials = {std::numeric_limits<S>::quiet_NaN(),
                                          std::numeric_limits<S>::infinity(),
                                          -std::numeric_limits<S>::infinity(),
                                          S(0),
                                          -S(0),
                                          S(0x1p-24),
                                          S(65504),
                                          S(-65504)};
      if ((bits >> 56U) % 3 == 0) return static_cast<T>(kSpecials[(bits >> 48U) % kSpecials.size()]);
    }
    const double fraction = 1.0 + static_cast<double>(bits >> 12U) * 0x1p-52;
    const double sign = (bits & 1U) != 0 ? -1.0 : 1.0;
    const double scale = static_cast<double>(1U << ((bits >> 1U) % 13)) / 64;
    return static_cast<T>(static_cast<S>(sign * fraction * scale));
  }
}

}  // namespace meshtrain::testing
