#include "telemetry/units.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(Units, DurationsHaveThreeDigitsAndNoExponentWhereTheyAreLong) {
  EXPECT_EQ(format_duration(0.000138), "0.138 ms");
  EXPECT_EQ(format_duration(0.00732), "7.32 ms");
  EXPECT_EQ(format_duration(0.5), "500 ms");
  EXPECT_EQ(format_duration(1.0), "1 s");
  EXPECT_EQ(format_duration(119.4), "119 s");
  EXPECT_EQ(format_duration(1800.0), "30.0 min");
  EXPECT_EQ(format_duration(7200.0), "2.0 h");
  EXPECT_EQ(format_duration(5e4 * 3600.0), "50000 h");
  EXPECT_EQ(format_duration(1e12 * 3600.0), "1000000000000 h");
}

TEST(Units, RatesAreIn1e9BytesASecond) {
  EXPECT_EQ(format_rate(551e6), "0.551 GB/s");
  EXPECT_EQ(format_rate(20e9), "20 GB/s");
  EXPECT_EQ(format_rate(2e12), "2000 GB/s");
}

TEST(Units, BytesAreInPowersOf1024) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 40), "3.00 TiB");
}

TEST(Units, OneIsNoPlural) {
  EXPECT_EQ(format_count(0, "rank"), "0 ranks");
  EXPECT_EQ(format_count(1, "rank"), "1 rank");
  EXPECT_EQ(format_count(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace meshtrain
