#include "base/number_text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace meshtrain {
namespace {

TEST(NumberText, Forms) {
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(2.0), "2.0");
  EXPECT_EQ(number_text(-0.0), "-0.0");
  EXPECT_EQ(number_text(1e-5), "1e-05");
  EXPECT_EQ(number_text(1e22), "1e+22");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(number_text(std::nan("")), "nan");
}

TEST(NumberText, ReadsBackToTheSameBits) {
  std::uint64_t bits = 1;
  for (int i = 0; i < 100000; ++i) {
    bits = bits * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
    const auto value = std::bit_cast<double>(bits);
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(std::strtod(number_text(value).c_str(), nullptr)), bits);
  }
}

}  // namespace
}  // namespace meshtrain
