#include "train/checkpoint_rhythm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "comm_ranks.h"

namespace meshtrain {
namespace {

constexpr double kHour = 3600.0;

Config config_with(std::int64_t every, std::int64_t ranks, double mtbf_hours = 0.0) {
  Config config;
  config.checkpoint.every = every;
  config.checkpoint.mtbf_hours = mtbf_hours;
  config.mesh.dp = ranks;
  return config;
}

// Published: 8 devices 6250 h, 1024 48.8 h.
TEST(CheckpointRhythm, FailuresAreThoseOfTheConfigOrOfItsRanks) {
  EXPECT_EQ(seconds_between_failures(config_with(0, 8)), 6250.0 * kHour);
  EXPECT_NEAR(seconds_between_failures(config_with(0, 1024)), 48.8 * kHour, 0.05 * kHour);
  EXPECT_EQ(seconds_between_failures(config_with(0, 8, 2.5)), 2.5 * kHour);
}

TEST(CheckpointRhythm, AutoIsYoungsIntervalWithinBounds) {
  // Published: 1 minute a checkpoint and 2930 minutes between failures make 77 minutes.
  const Config told = config_with(CheckpointConfig::kAuto, 8, 2930.0 / 60.0);
  EXPECT_EQ(std::round(auto_interval(told, {.stall = 60.0}) / 60.0), 77.0);
  EXPECT_EQ(auto_interval(told, {.stall = 0.001, .writing = 90.0}), 90.0);  // the one before must be written
  // 8 ranks that fail as usual: Young says sqrt(2 · 1 · 6250 h) = 1.9 h, too much to lose on a guess.
  const Config guessed = config_with(CheckpointConfig::kAuto, 8);
  EXPECT_EQ(auto_interval(guessed, {.stall = 1.0}), 1800.0);
  EXPECT_EQ(auto_interval(guessed, {.stall = 60.0}), 6000.0);  // where half an hour would cost more than 1 %
  EXPECT_NEAR(auto_interval(guessed, {.stall = 0.01}), std::sqrt(2.0 * 0.01 * 6250.0 * kHour), 1e-9);
}

// The steps up to `end` after which a run saves whose steps and saves take so long.
std::vector<std::int64_t> saves(const Config& config, double step_seconds, SaveTimes times, std::int64_t begin,
                                std::int64_t end, World& world, std::vector<std::string>* told = nullptr) {
  const auto ranks = world.everyone("test");
  double now = 5.0;
  CheckpointRhythm rhythm(config, [&] { return now; });
  rhythm.begin(begin);
  std::vector<std::int64_t> result;
  for (std::int64_t step = begin + 1; step <= end; ++step) {
    now += step_seconds;
    if (!rhythm.due(step)) continue;
    result.push_back(step);
    now += times.stall;
    const std::string message = rhythm.saved(step, times, *ranks);
    if (told != nullptr && !message.empty()) told->push_back(message);
  }
  return result;
}

TEST(CheckpointRhythm, ANumberIsEverySoManySteps) {
  const auto world = make_single_world();
  using Steps = std::vector<std::int64_t>;
  std::vector<std::string> told;
  EXPECT_EQ(saves(config_with(5, 1), 1.0, {.stall = 1.0}, 0, 17, *world, &told), (Steps{5, 10, 15}));
  EXPECT_EQ(saves(config_with(5, 1), 1.0, {.stall = 1.0}, 7, 17, *world, &told), (Steps{10, 15}));
  EXPECT_EQ(saves(config_with(0, 1), 1.0, {.stall = 1.0}, 0, 17, *world, &told), Steps{});
  EXPECT_TRUE(told.empty());
}

TEST(CheckpointRhythm, AutoComesToYoungsInterval) {
  const auto world = make_single_world();
  // sqrt(2 · 2 s · 1 h) = 120 s, 240 steps; the first after 10, then four times as many at most.
  const Config config = config_with(CheckpointConfig::kAuto, 1, 1.0);
  std::vector<std::string> told;
  EXPECT_EQ(saves(config, 0.5, {.stall = 2.0}, 0, 1000, *world, &told),
            (std::vector<std::int64_t>{10, 50, 210, 450, 690, 930}));
  ASSERT_EQ(told.size(), 1U);  // once
  for (const char* part : {"\"auto\"", "every 240 steps", "about 2.0 min", "for 2 s", "every 60.0 min"}) {
    EXPECT_NE(told[0].find(part), std::string::npos) << told[0];
  }
  EXPECT_EQ(told[0].find("mtbf_hours"), std::string::npos) << told[0];
  // A run that goes on finds the same.
  EXPECT_EQ(saves(config, 0.5, {.stall = 2.0}, 100, 800, *world),
            (std::vector<std::int64_t>{110, 150, 310, 550, 790}));
  // Steps longer than the interval: after each.
  EXPECT_EQ(saves(config, 500.0, {.stall = 2.0}, 0, 13, *world), (std::vector<std::int64_t>{10, 11, 12, 13}));
}

TEST(CheckpointRhythm, OneSlowSaveDoesNotDecide) {
  const auto ranks = make_single_world()->everyone("test");
  double now = 0.0;
  const Config config = config_with(CheckpointConfig::kAuto, 1, 1.0);
  CheckpointRhythm rhythm(config, [&] { return now; });
  rhythm.begin(0);
  std::int64_t messages = 0;
  std::int64_t last = 0;
  std::int64_t between = 0;
  for (std::int64_t step = 1; step <= 2000; ++step) {
    now += 0.5;
    if (!rhythm.due(step)) continue;
    const double stall = step > 1000 && step < 1300 ? 200.0 : 2.0;
    now += stall;
    messages += rhythm.saved(step, {.stall = stall}, *ranks).empty() ? 0 : 1;
    between = step - last;
    last = step;
  }
  EXPECT_EQ(messages, 1);
  EXPECT_EQ(between, 240);
}

TEST(CheckpointRhythm, AGuessIsCalledOneAndOneIsNoPlural) {
  const auto world = make_single_world();
  std::vector<std::string> told;
  saves(config_with(CheckpointConfig::kAuto, 1), 4000.0, {.stall = 0.5}, 0, 20, *world, &told);
  ASSERT_EQ(told.size(), 1U);
  for (const char* part :
       {"every 1 step,", "about 66.7 min", "for 500 ms", "every 50000 h", "mtbf_hours is not set"}) {
    EXPECT_NE(told[0].find(part), std::string::npos) << told[0];
  }
}

// Their clocks differ; rank 0's counts.
TEST(CheckpointRhythm, RanksAgree) {
  const Config config = config_with(CheckpointConfig::kAuto, 3, 1.0);
  const auto failures = testing::run_threads(3, {}, [&](World& world) -> std::vector<std::string> {
    const double step_seconds = world.rank() == 0 ? 0.5 : 77.0 * world.rank();
    std::vector<std::string> told;
    const auto steps = saves(config, step_seconds, {.stall = 2.0 + world.rank()}, 0, 1000, world, &told);
    if (steps != std::vector<std::int64_t>{10, 50, 210, 450, 690, 930}) return {"other steps"};
    if (told.size() != (world.rank() == 0 ? 1U : 0U)) return {"a message of a rank that does not lead"};
    return {};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
}

}  // namespace
}  // namespace meshtrain
