#include "comm/clock.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "comm_ranks.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Clocks that differ by hours, on threads whose true clock is one.
TEST(ClockOffset, LiesWithinItsError) {
  const auto failures = testing::run_threads(5, {}, [](World& world) {
    std::vector<std::string> wrong;
    const auto ranks = world.everyone("control");
    const std::array<std::int64_t, 5> ahead = {7 * kSecond, 0, 3'600 * kSecond, -86'400 * kSecond, 1};
    const auto rank = static_cast<std::size_t>(world.rank());
    const NanosecondClock clock = [own = ahead[rank]] { return steady_nanoseconds() + own; };
    for (int time = 0; time < 3; ++time) {
      const ClockOffset measured = clock_offset(*ranks, clock);
      const std::int64_t off = std::abs(measured.offset_ns - (ahead[0] - ahead[rank]));
      if (off > measured.error_ns) {
        wrong.push_back(fmt::format("rank {} is off by {} ns, and says {}", rank, off, measured.error_ns));
      }
      if (rank > 0 && (measured.error_ns <= 0 || measured.error_ns > kSecond)) {
        wrong.push_back(fmt::format("rank {} has an error of {} ns", rank, measured.error_ns));
      }
      if (std::abs(measured.at_ns - clock()) > 60 * kSecond) {
        wrong.push_back(fmt::format("rank {} measured at {}", rank, measured.at_ns));
      }
    }
    return wrong;
  });
  for (const auto& lines : failures) EXPECT_EQ(lines, std::vector<std::string>{});
}

// On rank 1 a round trip takes 1000, but for the fifth, which takes 10.
TEST(ClockOffset, BelievesTheFastestAnswer) {
  const auto failures = testing::run_threads(2, {}, [](World& world) {
    std::vector<std::string> wrong;
    const auto ranks = world.everyone("control");
    std::int64_t now = 0;
    int readings = 0;
    const NanosecondClock clock = [&] {
      if (world.rank() == 0) return std::int64_t{1'000'000} * ++readings;
      // A trip is two readings.
      return now += (++readings == 10 ? 10 : 1000);
    };
    const ClockOffset measured = clock_offset(*ranks, clock);
    if (world.rank() == 0) return wrong;
    // It began at 9000 and ended at 9010, when rank 0 said 5,000,000.
    if (measured.error_ns != 5) wrong.push_back(fmt::format("error {}", measured.error_ns));
    if (measured.at_ns != 9'005) wrong.push_back(fmt::format("at {}", measured.at_ns));
    if (measured.offset_ns != 5'000'000 - 9'005) wrong.push_back(fmt::format("{}", measured.offset_ns));
    return wrong;
  });
  for (const auto& lines : failures) EXPECT_EQ(lines, std::vector<std::string>{});
}

TEST(ClockOffset, OfOneRankIsNone) {
  const auto world = make_single_world();
  const auto ranks = world->everyone("control");
  EXPECT_EQ(clock_offset(*ranks).offset_ns, 0);
  EXPECT_EQ(clock_offset(*ranks).error_ns, 0);
}

TEST(ClockLine, TakesTheDriftToBeEven) {
  const ClockLine line({.at_ns = 1000, .offset_ns = 100}, {.at_ns = 3000, .offset_ns = 300});
  EXPECT_EQ(line.of_rank0(1000), 1100);
  EXPECT_EQ(line.of_rank0(2000), 2200);
  EXPECT_EQ(line.of_rank0(3000), 3300);
  const ClockOffset once = {.at_ns = 1000, .offset_ns = -5};
  EXPECT_EQ(ClockLine(once, once).of_rank0(7000), 6995);
  // Exact far from 0: the time itself never becomes a double.
  const std::int64_t late = std::int64_t{1} << 60;
  EXPECT_EQ(
      ClockLine({.at_ns = late, .offset_ns = 1}, {.at_ns = late + kSecond, .offset_ns = 1}).of_rank0(late + 3),
      late + 4);
}

TEST(ClockLine, KeepsTheOrderOfTimes) {
  const ClockLine line({.at_ns = 0, .offset_ns = 500}, {.at_ns = 1001, .offset_ns = -500});
  for (std::int64_t t = 0; t < 1001; ++t) EXPECT_LE(line.of_rank0(t), line.of_rank0(t + 1)) << t;
}

}  // namespace
}  // namespace meshtrain
