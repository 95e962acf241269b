// The two 16-bit storage formats. Arithmetic is done in float; conversion rounds to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace meshtrain {

// Bits of the bf16 nearest to `value` (ties to even); a NaN stays a (quiet) NaN.
constexpr std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x0040U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

// Bits of the IEEE binary16 nearest to `value` (ties to even); overflow gives infinity.
constexpr std::uint16_t f16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {
    // Subnormal result: adding 0.5 aligns the mantissa so that the FPU rounds at bit 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13U) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13U));
}

constexpr float float_from_f16(std::uint16_t bits) {
  const auto sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

struct BF16 {
  std::uint16_t bits = 0;
  constexpr BF16() = default;
  constexpr explicit BF16(float value) : bits(bf16_bits(value)) {}
  constexpr explicit operator float() const { return float_from_bf16(bits); }
};

struct F16 {
  std::uint16_t bits = 0;
  constexpr F16() = default;
  constexpr explicit F16(float value) : bits(f16_bits(value)) {}
  constexpr explicit operator float() const { return float_from_f16(bits); }
};

}  // namespace meshtrain
