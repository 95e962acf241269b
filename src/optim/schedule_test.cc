#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/error.h"

namespace meshtrain {
namespace {

Schedule schedule(ScheduleKind kind) {
  return {.kind = kind, .lr = 3e-4, .steps = 110, .warmup = 10, .min_lr = 3e-5, .decay_fraction = 0.2};
}

constexpr std::array kKinds = {ScheduleKind::kConstant, ScheduleKind::kCosine, ScheduleKind::kLinear,
                               ScheduleKind::kWsd};

TEST(ScheduleTest, WarmUpIsALineThatEndsAtTheRate) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule s = schedule(kind);
    EXPECT_EQ(learning_rate(s, 1), 3e-4 * 0.1);
    EXPECT_EQ(learning_rate(s, 5), 3e-4 * 0.5);
    EXPECT_EQ(learning_rate(s, 10), 3e-4);
  }
}

TEST(ScheduleTest, WithoutWarmUpTheFirstStepIsNearTheRate) {
  Schedule s = schedule(ScheduleKind::kLinear);
  s.warmup = 0;
  s.steps = 100;
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 3e-5 + 2.7e-4 * 0.99);
  s.kind = ScheduleKind::kConstant;
  EXPECT_EQ(learning_rate(s, 1), 3e-4);
}

TEST(ScheduleTest, EndsExactlyAtTheLastRate) {
  for (const ScheduleKind kind : kKinds) {
    const double last = kind == ScheduleKind::kConstant ? 3e-4 : 3e-5;
    EXPECT_EQ(learning_rate(schedule(kind), 110), last) << name_of(kind);
    EXPECT_EQ(learning_rate(schedule(kind), 111), last) << name_of(kind);
    EXPECT_EQ(learning_rate(schedule(kind), std::numeric_limits<std::int64_t>::max()), last) << name_of(kind);
  }
}

TEST(ScheduleTest, CosineFollowsItsFormula) {
  const Schedule s = schedule(ScheduleKind::kCosine);
  EXPECT_NEAR(learning_rate(s, 60), (3e-4 + 3e-5) / 2, 1e-18);                         // half: cos = 0
  EXPECT_NEAR(learning_rate(s, 35), 3e-5 + 2.7e-4 * (1 + std::sqrt(0.5)) / 2, 1e-18);  // quarter
}

TEST(ScheduleTest, LinearFollowsItsFormula) {
  const Schedule s = schedule(ScheduleKind::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate(s, 60), 3e-5 + 2.7e-4 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 90), 3e-5 + 2.7e-4 * 0.2);
}

TEST(ScheduleTest, WsdHoldsThenFalls) {
  Schedule s = schedule(ScheduleKind::kWsd);  // the last 22 of 110 steps fall
  EXPECT_EQ(learning_rate(s, 11), 3e-4);
  EXPECT_EQ(learning_rate(s, 88), 3e-4);
  EXPECT_DOUBLE_EQ(learning_rate(s, 89), 3e-5 + 2.7e-4 * (21.0 / 22.0));
  EXPECT_DOUBLE_EQ(learning_rate(s, 99), 3e-5 + 2.7e-4 * 0.5);
  s.decay_fraction = 1.0;  // falls as soon as it is warm
  EXPECT_DOUBLE_EQ(learning_rate(s, 60), 3e-5 + 2.7e-4 * 0.5);
  s.decay_fraction = 0.0;  // never falls
  EXPECT_EQ(learning_rate(s, 110), 3e-4);
}

TEST(ScheduleTest, FallsButNeverRisesAfterWarmUp) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule s = schedule(kind);
    for (std::int64_t step = 11; step <= 110; ++step) {
      EXPECT_LE(learning_rate(s, step), learning_rate(s, step - 1)) << name_of(kind) << " " << step;
      EXPECT_GE(learning_rate(s, step), 3e-5) << name_of(kind) << " " << step;
    }
  }
}

TEST(ScheduleTest, WarmUpMayLastToTheEnd) {
  for (const ScheduleKind kind : kKinds) {
    Schedule s = schedule(kind);
    s.warmup = s.steps;
    validate(s);
    EXPECT_EQ(learning_rate(s, 55), 1.5e-4);
    EXPECT_EQ(learning_rate(s, 110), 3e-4);
  }
}

TEST(ScheduleTest, StepsCountFromOne) {
  EXPECT_THROW(learning_rate(schedule(ScheduleKind::kCosine), 0), std::logic_error);
}

TEST(ScheduleTest, NamesRoundTrip) {
  for (const ScheduleKind kind : kKinds) EXPECT_EQ(parse_schedule(name_of(kind)), kind);
  EXPECT_EQ(schedule_names().size(), kKinds.size());
  try {
    parse_schedule("cosin");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.schedule = \"cosin\""), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("\"cosine\""), std::string::npos) << e.what();
  }
}

void expect_refused(const Schedule& s, const std::string& key) {
  try {
    validate(s);
    FAIL() << key;
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
  }
}

TEST(ScheduleTest, RefusesWhatContradictsItself) {
  const Schedule good = schedule(ScheduleKind::kWsd);
  validate(good);
  Schedule s = good;
  s.warmup = 111;
  expect_refused(s, "optimizer.warmup = 111");
  s.warmup = -1;
  expect_refused(s, "optimizer.warmup = -1");
  s = good;
  s.min_lr = 4e-4;
  expect_refused(s, "optimizer.min_lr = 0.0004");
  s.min_lr = std::nan("");
  expect_refused(s, "optimizer.min_lr = nan");
  s = good;
  s.lr = -1.0;
  expect_refused(s, "optimizer.lr = -1");
  s = good;
  s.decay_fraction = 1.5;
  expect_refused(s, "optimizer.decay_fraction = 1.5");
  s = good;
  s.steps = 0;
  expect_refused(s, "train.steps = 0");
}

}  // namespace
}  // namespace meshtrain
