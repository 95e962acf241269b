#include "pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "pipeline/pipeline_testing.h"

namespace meshtrain {
namespace {

constexpr PipelineStep kSteps[] = {PipelineStep::kForward, PipelineStep::kBackward,
                                   PipelineStep::kBackwardWeight};

std::string order_text(std::string_view name, const PipelineShape& shape, int stage) {
  return text_of(find_schedule(name)->order(shape, stage), shape.chunks);
}

std::int64_t leading_forwards(const std::vector<PipelineAction>& order) {
  return std::find_if(order.begin(), order.end(),
                      [](const PipelineAction& action) { return action.step != PipelineStep::kForward; }) -
         order.begin();
}

TEST(Schedule, IsFoundByName) {
  EXPECT_EQ(pipeline_schedule_names(), (std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1"}));
  for (const std::string& name : pipeline_schedule_names()) {
    ASSERT_NE(find_schedule(name), nullptr);
    EXPECT_EQ(find_schedule(name)->name, name);
  }
  EXPECT_EQ(find_schedule("1F1B"), nullptr);
  EXPECT_EQ(find_schedule(""), nullptr);
}

TEST(Schedule, NamesActions) {
  EXPECT_EQ(to_string(PipelineAction{PipelineStep::kForward, 0, 3}, 1), "F3");
  EXPECT_EQ(to_string(PipelineAction{PipelineStep::kBackwardWeight, 0, 12}, 1), "W12");
  EXPECT_EQ(to_string(PipelineAction{PipelineStep::kBackward, 1, 3}, 2), "B3.1");
}

TEST(Schedule, HasEveryActionOnceAndInOrder) {
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineSchedule& schedule = *find_schedule(name);
    for_each_shape(schedule, [&](const PipelineShape& shape) {
      for (const std::vector<PipelineAction>& order : orders_of(schedule, shape)) {
        SCOPED_TRACE(name + " " + to_string(shape));
        const std::int64_t steps = schedule.splits_backward ? 3 : 2;
        ASSERT_EQ(order.size(), static_cast<std::size_t>(steps * shape.chunks * shape.micro_batches));
        for (int chunk = 0; chunk < shape.chunks; ++chunk) {
          std::map<PipelineStep, std::int64_t> next;
          for (const PipelineAction& action : order) {
            if (action.chunk != chunk) continue;
            ASSERT_EQ(action.micro_batch, next[action.step]++);
          }
          for (int step = 0; step < steps; ++step) ASSERT_EQ(next[kSteps[step]], shape.micro_batches);
        }
        const auto place = [&](const PipelineAction& action) {
          return std::find(order.begin(), order.end(), action) - order.begin();
        };
        for (const PipelineAction& action : order) {
          if (action.step == PipelineStep::kForward) continue;
          PipelineAction before = action;
          before.step =
              action.step == PipelineStep::kBackward ? PipelineStep::kForward : PipelineStep::kBackward;
          ASSERT_LT(place(before), place(action));
        }
      }
    });
  }
}

// Narayanan et al. 2021, figure 3 and 4; Qi et al. 2024, figure 3 and its text on ZB-H1.
TEST(Schedule, MatchesThePublishedOrders) {
  EXPECT_EQ(order_text("gpipe", {4, 1, 3}, 2), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(order_text("1f1b", {4, 1, 8}, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order_text("1f1b", {4, 1, 8}, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  EXPECT_EQ(order_text("1f1b", {4, 1, 2}, 0), "F0 F1 B0 B1");
  EXPECT_EQ(order_text("1f1b", {1, 1, 3}, 0), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(order_text("zb-h1", {1, 1, 2}, 0), "F0 B0 W0 F1 B1 W1");
  EXPECT_EQ(order_text("zb-h1", {3, 1, 4}, 0), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(order_text("zb-h1", {3, 1, 4}, 2), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
  EXPECT_EQ(order_text("interleaved", {2, 2, 4}, 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(order_text("interleaved", {2, 2, 4}, 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(order_text("interleaved", {4, 1, 6}, stage), order_text("1f1b", {4, 1, 6}, stage));
  }
}

TEST(Schedule, WarmsUp) {
  for_each_shape(*find_schedule("1f1b"), [&](const PipelineShape& shape) {
    for (int r = 0; r < shape.stages; ++r) {
      const std::int64_t warm_up = std::min<std::int64_t>(shape.micro_batches, shape.stages - 1 - r);
      // The first of the alternating forwards follows, if any is left.
      const std::int64_t expected = std::min(shape.micro_batches, warm_up + 1);
      EXPECT_EQ(leading_forwards(find_schedule("1f1b")->order(shape, r)), expected) << to_string(shape);
      EXPECT_EQ(leading_forwards(find_schedule("zb-h1")->order(shape, r)), expected) << to_string(shape);
    }
  });
  for_each_shape(*find_schedule("interleaved"), [&](const PipelineShape& shape) {
    if (shape.chunks == 1 || shape.micro_batches % shape.stages != 0) return;
    for (int r = 0; r < shape.stages; ++r) {
      const std::int64_t forwards = shape.micro_batches * shape.chunks;
      const std::int64_t warm_up = 2 * (shape.stages - 1 - r) + (shape.chunks - 1) * shape.stages;
      EXPECT_EQ(leading_forwards(find_schedule("interleaved")->order(shape, r)),
                std::min(forwards, warm_up + 1))
          << to_string(shape);
    }
  });
}

TEST(Schedule, PeakLiveCountsToTheLastBackwardPart) {
  using enum PipelineStep;
  EXPECT_EQ(peak_live({}), 0);
  EXPECT_EQ(peak_live({{kForward, 0, 0}, {kBackward, 0, 0}, {kForward, 0, 1}, {kBackward, 0, 1}}), 1);
  const std::vector<PipelineAction> split = {{kForward, 0, 0},        {kBackward, 0, 0},
                                             {kForward, 0, 1},        {kBackward, 0, 1},
                                             {kBackwardWeight, 0, 0}, {kBackwardWeight, 0, 1}};
  EXPECT_EQ(peak_live(split), 2);
  const std::vector<PipelineAction> chunks = {{kForward, 0, 0},  {kForward, 0, 1},  {kForward, 1, 0},
                                              {kBackward, 1, 0}, {kBackward, 0, 0}, {kForward, 1, 1},
                                              {kBackward, 1, 1}, {kBackward, 0, 1}};
  EXPECT_EQ(peak_live(chunks), 3);
  EXPECT_EQ(peak_live(chunks, {1, 0}), 2);
  EXPECT_EQ(peak_live(chunks, {0, 1}), 1);
}

TEST(Schedule, KeepsThePublishedNumberOfMicroBatches) {
  for_each_shape(*find_schedule("1f1b"), [&](const PipelineShape& shape) {
    SCOPED_TRACE(to_string(shape));
    const std::int64_t m = shape.micro_batches;
    for (int r = 0; r < shape.stages; ++r) {
      EXPECT_EQ(peak_live(find_schedule("gpipe")->order(shape, r)), m);
      EXPECT_EQ(peak_live(find_schedule("1f1b")->order(shape, r)), std::min<std::int64_t>(m, shape.stages - r));
      EXPECT_EQ(peak_live(find_schedule("zb-h1")->order(shape, r)), std::min<std::int64_t>(m, shape.stages));
    }
  });
  for_each_shape(*find_schedule("interleaved"), [&](const PipelineShape& shape) {
    if (shape.chunks == 1 || shape.micro_batches % shape.stages != 0) return;
    for (int r = 0; r < shape.stages; ++r) {
      const std::int64_t warm_up = 2 * (shape.stages - 1 - r) + (shape.chunks - 1) * shape.stages;
      EXPECT_EQ(peak_live(find_schedule("interleaved")->order(shape, r)),
                std::min(shape.micro_batches * shape.chunks, warm_up + 1))
          << to_string(shape);
    }
  });
}

// What a forward pass computes once more may lie where one of those would that wait for the second part of
// their backward pass: there is always room.
TEST(Schedule, ZbH1HasRoomBetweenBackwardPartsAtEveryForwardPass) {
  using enum PipelineStep;
  EXPECT_EQ(peak_split(find_schedule("1f1b")->order({4, 1, 9}, 1)), 0);
  for_each_shape(*find_schedule("zb-h1"), [&](const PipelineShape& shape) {
    SCOPED_TRACE(to_string(shape));
    for (int r = 0; r < shape.stages; ++r) {
      const std::vector<PipelineAction> order = find_schedule("zb-h1")->order(shape, r);
      const std::int64_t peak = peak_split(order);
      EXPECT_EQ(peak, std::min<std::int64_t>(shape.micro_batches, r + 1));
      std::int64_t split = 0;
      for (const PipelineAction& action : order) {
        EXPECT_TRUE(action.step != kForward || split < peak);
        split += action.step == kBackward ? 1 : action.step == kBackwardWeight ? -1 : 0;
      }
    }
  });
}

// The three cases of interleaved.cc for micro-batches that are no multiple of p.
TEST(Schedule, InterleavesUnevenGroups) {
  EXPECT_EQ(
      order_text("interleaved", {2, 2, 5}, 1),
      "F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.0 B0.0 F4.0 B1.0 F3.1 B2.0 F4.1 B3.1 B4.1 B3.0 B4.0");
  const PipelineSchedule& schedule = *find_schedule("interleaved");
  for (int stage = 0; stage < 8; ++stage) {
    EXPECT_EQ(peak_live(schedule.order({8, 2, 23}, stage)), peak_live(schedule.order({8, 2, 24}, stage)));
  }
  EXPECT_EQ(leading_forwards(schedule.order({12, 2, 31}, 11)), 62);
}

TEST(Schedule, RefusesChunksWhereThereAreNone) {
  EXPECT_THROW(orders_of(*find_schedule("1f1b"), {2, 2, 4}), std::logic_error);
  EXPECT_THROW(orders_of(*find_schedule("1f1b"), {0, 1, 4}), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
