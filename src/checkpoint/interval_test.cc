#include "checkpoint/interval.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshtrain {
namespace {

constexpr double kMinute = 60.0;
constexpr double kHour = 3600.0;

// Published: 10 minutes a checkpoint and 2930 minutes between failures, 242 minutes and 8.3 %; 1 minute, 77 and
// 2.6 %.
TEST(Interval, YoungsValues) {
  EXPECT_EQ(std::round(young_interval(10 * kMinute, 2930 * kMinute) / kMinute), 242.0);
  EXPECT_EQ(std::round(young_waste(10 * kMinute, 2930 * kMinute) * 1000.0), 83.0);
  EXPECT_EQ(std::round(young_interval(1 * kMinute, 2930 * kMinute) / kMinute), 77.0);
  EXPECT_EQ(std::round(young_waste(1 * kMinute, 2930 * kMinute) * 1000.0), 26.0);
}

// Published for one failure in 50 000 device-hours.
TEST(Interval, FailuresComeCloserWithMoreDevices) {
  EXPECT_EQ(seconds_between_failures(50'000.0, 8) / kHour, 6250.0);
  EXPECT_EQ(std::round(seconds_between_failures(50'000.0, 1024) / kHour * 10.0), 488.0);
  EXPECT_EQ(std::round(seconds_between_failures(50'000.0, 16384) / kHour * 10.0), 31.0);
  EXPECT_EQ(kDeviceHoursPerFailure, 50'000.0);
}

TEST(Interval, NoOtherIntervalWastesLess) {
  const double stall = 7.0;
  const double apart = 9000.0;
  const double best = young_interval(stall, apart);
  EXPECT_NEAR(waste_of_interval(best, stall, 0.0, apart), young_waste(stall, apart), 1e-15);
  for (const double factor : {0.1, 0.5, 0.9, 1.1, 2.0, 10.0}) {
    for (const double lag : {0.0, 3.0}) {
      EXPECT_GT(waste_of_interval(factor * best, stall, lag, apart),
                waste_of_interval(best, stall, lag, apart));
    }
  }
}

TEST(Interval, WasteIsStallsAndWhatFailuresLose) {
  // In 1000 s: 10 saves of 2 s, and a failure that loses 50 s and the 5 s in which a checkpoint was written.
  EXPECT_DOUBLE_EQ(lost_by_failure(100.0, 5.0), 55.0);
  EXPECT_DOUBLE_EQ(waste_of_interval(100.0, 2.0, 5.0, 1000.0), 0.02 + 0.055);
}

TEST(Interval, InSteps) {
  EXPECT_EQ(steps_in(100.0, 3.0), 33);
  EXPECT_EQ(steps_in(100.0, 8.0), 13);  // 12.5
  EXPECT_EQ(steps_in(1.0, 60.0), 1);
  EXPECT_EQ(steps_in(0.0, 1.0), 1);
  EXPECT_EQ(steps_in(1e12, 1e-9), 1'000'000'000'000'000);
}

}  // namespace
}  // namespace meshtrain
