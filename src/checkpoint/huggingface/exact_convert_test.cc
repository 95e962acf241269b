#include "checkpoint/huggingface/exact_convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

namespace meshtrain {
namespace {

// All 65536 values, signalling NaNs, -0 and subnormals among them.
std::vector<std::byte> every_value() {
  std::vector<std::byte> bytes(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    bytes[2 * i] = static_cast<std::byte>(i & 0xFFU);
    bytes[2 * i + 1] = static_cast<std::byte>(i >> 8U);
  }
  return bytes;
}

TEST(ExactConvert, EverySixteenBitValueComesBackBitForBit) {
  const std::vector<std::byte> bytes = every_value();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> values(65536);
    widen(dtype, bytes, values);
    std::vector<std::byte> back(bytes.size());
    EXPECT_EQ(narrow(values, dtype, back), std::nullopt);
    EXPECT_EQ(back, bytes) << name_of(dtype);
  }
}

TEST(ExactConvert, WidensToTheValueOfTheFormat) {
  // IEEE 754 binary16: 1.5, the smallest subnormal, the largest finite, -0; bfloat16: pi rounded.
  const auto widened = [](DType dtype, std::uint16_t bits) {
    const auto bytes = std::bit_cast<std::array<std::byte, 2>>(bits);
    float value = 0.0F;
    widen(dtype, bytes, {&value, 1});
    return value;
  };
  EXPECT_EQ(widened(DType::kF16, 0x3E00), 1.5F);
  EXPECT_EQ(widened(DType::kF16, 0x0001), 0x1p-24F);
  EXPECT_EQ(widened(DType::kF16, 0x7BFF), 65504.0F);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(widened(DType::kF16, 0x8000)), 0x80000000U);
  EXPECT_EQ(widened(DType::kBF16, 0x4049), 3.140625F);
}

TEST(ExactConvert, OtherValuesAreRoundedToNearestEven) {
  const auto narrowed = [](DType dtype, float value) {
    std::array<std::byte, 2> bytes{};
    EXPECT_EQ(narrow({&value, 1}, dtype, bytes), std::nullopt);
    return std::bit_cast<std::uint16_t>(bytes);
  };
  EXPECT_EQ(narrowed(DType::kBF16, std::bit_cast<float>(0x3F808000U)), 0x3F80);  // tie, to even
  EXPECT_EQ(narrowed(DType::kBF16, std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(narrowed(DType::kF16, 1.0F + 0x1p-11F), 0x3C00);
  EXPECT_EQ(narrowed(DType::kF16, 1.0F + 3 * 0x1p-11F), 0x3C02);
  // A NaN whose payload lies below what the type keeps must not become an infinity.
  EXPECT_EQ(narrowed(DType::kBF16, std::bit_cast<float>(0x7F800001U)) & 0x7FFF, 0x7FC0);
  EXPECT_EQ(narrowed(DType::kF16, std::bit_cast<float>(0x7F800001U)) & 0x7FFF, 0x7E00);
}

TEST(ExactConvert, SaysWhichFiniteValueDoesNotFit) {
  const std::vector<float> values = {1.0F, -std::numeric_limits<float>::infinity(), 65520.0F, 1e30F};
  std::vector<std::byte> bytes(values.size() * 2);
  EXPECT_EQ(narrow(values, DType::kF16, bytes), 2U);  // 65519.99… still rounds to 65504
  EXPECT_EQ(narrow(values, DType::kBF16, bytes), std::nullopt);
  const std::vector<float> largest = {std::numeric_limits<float>::max()};
  EXPECT_EQ(narrow(largest, DType::kBF16, std::span(bytes).first(2)), 0U);
}

TEST(ExactConvert, Fp32IsCopied) {
  const std::vector<std::uint32_t> bits = {0x7F800001U, 0x80000000U, 0x00000001U, 0xFFC12345U};
  std::vector<float> values(bits.size());
  widen(DType::kF32, std::as_bytes(std::span(bits)), values);
  EXPECT_EQ(std::memcmp(values.data(), bits.data(), 16), 0);
  std::vector<std::byte> back(16);
  EXPECT_EQ(narrow(values, DType::kF32, back), std::nullopt);
  EXPECT_EQ(std::memcmp(back.data(), bits.data(), 16), 0);
}

}  // namespace
}  // namespace meshtrain
