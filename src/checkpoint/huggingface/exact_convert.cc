#include "checkpoint/huggingface/exact_convert.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace meshtrain {
namespace {

// As bf16_bits, which makes every NaN quiet, but a value that came from bf16 goes back as it was.
std::uint16_t exact_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0xFFFFU) == 0 ? static_cast<std::uint16_t>(bits >> 16U) : bf16_bits(value);
}

// As f16_bits, which has one NaN, but the payload of a NaN that came from fp16 goes back as it was.
std::uint16_t exact_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool from_f16 = (bits & 0x7F800000U) == 0x7F800000U && (bits & 0x1FFFU) == 0;
  if (!from_f16) return f16_bits(value);
  return static_cast<std::uint16_t>(((bits >> 16U) & 0x8000U) | 0x7C00U | ((bits >> 13U) & 0x3FFU));
}

void store(std::byte* to, std::uint16_t bits) {
  std::memcpy(to, &bits, sizeof bits);
}

template <class Widen>
void widen_16(std::span<const std::byte> from, std::span<float> to, Widen widen_one) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from.data() + i * sizeof bits, sizeof bits);
    to[i] = widen_one(bits);
  }
}

template <class Narrow>
std::optional<std::size_t> narrow_16(std::span<const float> from, std::span<std::byte> to,
                                     std::uint16_t infinity, Narrow narrow_one) {
  std::optional<std::size_t> overflow;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint16_t bits = narrow_one(from[i]);
    if ((bits & 0x7FFFU) == infinity && !overflow && std::isfinite(from[i])) overflow = i;
    store(to.data() + i * sizeof bits, bits);
  }
  return overflow;
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void widen(DType dtype, std::span<const std::byte> from, std::span<float> to) {
  check(is_weight_dtype(dtype), "a weight is fp32, bf16 or fp16");
  check(from.size() == to.size() * static_cast<std::size_t>(size_of(dtype)), "as many elements as bytes hold");
  if (dtype == DType::kBF16) {
    widen_16(from, to, float_from_bf16);
  } else if (dtype == DType::kF16) {
    widen_16(from, to, float_from_f16);
  } else if (!to.empty()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

std::optional<std::size_t> narrow(std::span<const float> from, DType dtype, std::span<std::byte> to) {
  check(is_weight_dtype(dtype), "a weight is fp32, bf16 or fp16");
  check(to.size() == from.size() * static_cast<std::size_t>(size_of(dtype)), "as many elements as bytes hold");
  if (dtype == DType::kBF16) return narrow_16(from, to, 0x7F80, exact_bf16);
  if (dtype == DType::kF16) return narrow_16(from, to, 0x7C00, exact_f16);
  if (!from.empty()) std::memcpy(to.data(), from.data(), to.size());
  return std::nullopt;
}

}  // namespace meshtrain
