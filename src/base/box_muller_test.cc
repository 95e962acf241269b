#include "base/box_muller.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "reference_data.h"

namespace meshtrain {
namespace {

// tests/reference/box_muller.py: 400 bits of precision, some two hundred pairs that double cannot decide.
TEST(BoxMuller, IsTheNearestFloat) {
  const nlohmann::json rows = reference_json("box_muller.json");
  ASSERT_GT(rows.size(), 500U);
  for (const nlohmann::json& row : rows) {
    const auto a = row[0].get<std::uint32_t>();
    const auto b = row[1].get<std::uint32_t>();
    ASSERT_EQ(std::bit_cast<std::uint32_t>(box_muller(a, b)), row[2].get<std::uint32_t>()) << a << " " << b;
  }
}

TEST(BoxMuller, IsEvenInTheAngleAndOddAboutAQuarterTurn) {
  for (std::uint32_t i = 1; i < 2000; ++i) {
    const std::uint32_t a = i * 2147001325U;
    const std::uint32_t b = i * 3266489917U;
    EXPECT_EQ(box_muller(a, b), box_muller(a, 0U - b));
    EXPECT_EQ(box_muller(a, b), -box_muller(a, b + (1U << 31U)));
  }
}

TEST(BoxMuller, ZeroIsPositive) {
  for (const std::uint32_t b : {1U << 30U, 3U << 30U}) {
    for (const std::uint32_t a : {0U, 12345U, 0xFFFFFFFFU}) {
      EXPECT_EQ(box_muller(a, b), 0.0F);
      EXPECT_FALSE(std::signbit(box_muller(a, b)));
    }
  }
}

}  // namespace
}  // namespace meshtrain
