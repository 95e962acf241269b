#include "pipeline/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <stdexcept>

#include "base/error.h"
#include "pipeline/pipeline_testing.h"

namespace meshtrain {
namespace {

using Orders = std::vector<std::vector<PipelineAction>>;

Timeline unit_timeline(std::string_view name, const PipelineShape& shape) {
  const PipelineSchedule& schedule = *find_schedule(name);
  return simulate(shape, orders_of(schedule, shape), unit_costs(schedule, shape.chunks));
}

// What simulate() complains of, or "" if it ends.
std::string complaint(const PipelineShape& shape, const Orders& orders) {
  try {
    simulate(shape, orders, unit_costs(*find_schedule("1f1b"), shape.chunks));
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

PipelineAction forward(std::int64_t micro_batch, int chunk = 0) {
  return {PipelineStep::kForward, chunk, micro_batch};
}
PipelineAction backward(std::int64_t micro_batch, int chunk = 0) {
  return {PipelineStep::kBackward, chunk, micro_batch};
}

TEST(Timeline, IdleFractionsArePublished) {
  EXPECT_NEAR(unit_timeline("gpipe", {4, 1, 2}).idle_fraction(), 0.6, 1e-12);
  EXPECT_NEAR(unit_timeline("1f1b", {4, 1, 2}).idle_fraction(), 0.6, 1e-12);
  for (const auto& [stages, needed] : {std::pair{8, 63}, std::pair{4, 27}}) {
    EXPECT_LE(unit_timeline("1f1b", {stages, 1, needed}).idle_fraction(), 0.1 + 1e-12);
    EXPECT_GT(unit_timeline("1f1b", {stages, 1, needed - 1}).idle_fraction(), 0.1 + 1e-12);
  }
  EXPECT_NEAR(unit_timeline("interleaved", {4, 2, 8}).idle_fraction(), 3.0 / 19.0, 1e-12);
  EXPECT_NEAR(unit_timeline("zb-h1", {4, 1, 8}).idle_fraction(), 3.0 / 27.0, 1e-12);
}

TEST(Timeline, IdleFractionsOfAllShapes) {
  for_each_shape(*find_schedule("interleaved"), [](const PipelineShape& shape) {
    SCOPED_TRACE(to_string(shape));
    const double p = shape.stages;
    const double m = static_cast<double>(shape.micro_batches);
    const double v = shape.chunks;
    if (shape.chunks == 1) {
      EXPECT_NEAR(unit_timeline("gpipe", shape).idle_fraction(), (p - 1) / (m + p - 1), 1e-12);
      EXPECT_NEAR(unit_timeline("1f1b", shape).idle_fraction(), (p - 1) / (m + p - 1), 1e-12);
      const Timeline zero_bubble = unit_timeline("zb-h1", shape);
      EXPECT_NEAR(zero_bubble.seconds, m >= p ? 3 * m + p - 1 : 2 * m + 2 * p - 1, 1e-9);
      EXPECT_NEAR(zero_bubble.idle_fraction(), 1.0 - 3 * m / zero_bubble.seconds, 1e-12);
    }
    const double interleaved = unit_timeline("interleaved", shape).idle_fraction();
    const std::int64_t groups = shape.micro_batches / shape.stages;
    if (shape.chunks == 1 || (groups > 0 && shape.micro_batches <= groups * (shape.stages + 3))) {
      EXPECT_NEAR(interleaved, (p - 1) / (v * m + p - 1), 1e-12);
    } else {
      EXPECT_GE(interleaved, (p - 1) / (v * m + p - 1) - 1e-12);
      EXPECT_LE(interleaved, (p - 1) / (m + p - 1) + 1e-12) << "not even 1f1b's";
    }
  });
}

TEST(Timeline, PublishedFormulas) {
  EXPECT_DOUBLE_EQ(published_idle_fraction(*find_schedule("gpipe"), {4, 1, 2}), 0.6);
  EXPECT_DOUBLE_EQ(published_idle_fraction(*find_schedule("1f1b"), {8, 1, 63}), 0.1);
  EXPECT_DOUBLE_EQ(published_idle_fraction(*find_schedule("interleaved"), {4, 3, 9}), 0.1);
  EXPECT_DOUBLE_EQ(published_idle_fraction(*find_schedule("zb-h1"), {4, 1, 9}), 0.1);
}

// Large shapes end too: the rules of interleaved.cc do not rest on the small ones alone.
TEST(Timeline, EveryScheduleEnds) {
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineSchedule& schedule = *find_schedule(name);
    for_each_shape(schedule, [&](const PipelineShape& shape) {
      EXPECT_NO_THROW(check_schedule(schedule, shape)) << name << " " << to_string(shape);
    });
    const int chunks = schedule.takes_chunks ? 3 : 1;
    for (const int stages : {11, 16, 24}) {
      for (int micro_batches = 1; micro_batches <= 5 * stages; micro_batches += 3) {
        const PipelineShape shape{stages, chunks, micro_batches};
        EXPECT_NO_THROW(check_schedule(schedule, shape)) << name << " " << to_string(shape);
      }
    }
  }
}

TEST(Timeline, HoldsForAnyCosts) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.0, 3.0);
  for (const std::string& name : pipeline_schedule_names()) {
    const PipelineSchedule& schedule = *find_schedule(name);
    for_each_shape(schedule, [&](const PipelineShape& shape) {
      SCOPED_TRACE(name + " " + to_string(shape));
      const double transfer = seconds(random) / 4.0;
      const Timeline timeline = simulate(
          shape, orders_of(schedule, shape),
          {.action = [&](int, const PipelineAction&) { return seconds(random); }, .transfer = transfer});
      // Every action begins after those that it needs: its neighbours' and the one before on its stage.
      std::map<std::tuple<int, PipelineStep, std::int64_t>, double> ends;
      for (int stage = 0; stage < shape.stages; ++stage) {
        double before = 0.0;
        for (const TimedAction& timed : timeline.stages[stage]) {
          EXPECT_GE(timed.begin, before);
          before = timed.end;
          const int piece = timed.action.chunk * shape.stages + stage;
          ends[{piece, timed.action.step, timed.action.micro_batch}] = timed.end;
        }
        EXPECT_GE(timeline.seconds, before);
      }
      const double hop = shape.stages == 1 ? 0.0 : transfer;
      for (int stage = 0; stage < shape.stages; ++stage) {
        for (const TimedAction& timed : timeline.stages[stage]) {
          const auto& [step, chunk, i] = timed.action;
          const int piece = chunk * shape.stages + stage;
          if (step == PipelineStep::kForward && piece > 0) {
            EXPECT_GE(timed.begin, ends.at({piece - 1, step, i}) + hop);
          }
          if (step == PipelineStep::kBackward) {
            EXPECT_GE(timed.begin, ends.at({piece, PipelineStep::kForward, i}));
            if (piece + 1 < shape.pieces()) {
              EXPECT_GE(timed.begin, ends.at({piece + 1, step, i}) + hop);
            }
          }
          if (step == PipelineStep::kBackwardWeight) {
            EXPECT_GE(timed.begin, ends.at({piece, PipelineStep::kBackward, i}));
          }
        }
      }
    });
  }
}

TEST(Timeline, BuffersHoldBackAStage) {
  const PipelineShape shape{2, 1, 8};
  const Timeline timeline = simulate(
      shape, orders_of(*find_schedule("gpipe"), shape),
      {.action = [](int stage, const PipelineAction&) { return stage == 0 ? 1.0 : 100.0; }, .transfer = 0.0});
  // The second stage runs F0 from 1 to 101 and F1 to 201. It has asked for messages 0 and 1; for 2 it asks at
  // 101. Messages 2 and 3 have the send buffers until then: F4 computes, and waits for the first of them.
  const std::vector<TimedAction>& first = timeline.stages[0];
  EXPECT_DOUBLE_EQ(first[4].begin, 4.0);
  EXPECT_DOUBLE_EQ(first[4].end, 5.0);
  EXPECT_DOUBLE_EQ(first[5].begin, 101.0);
  EXPECT_DOUBLE_EQ(first[6].begin, 201.0);
  EXPECT_DOUBLE_EQ(first[7].begin, 301.0);
}

TEST(Timeline, TransfersTakeTheirTime) {
  const PipelineShape shape{2, 1, 1};
  const Timeline timeline =
      simulate(shape, orders_of(*find_schedule("1f1b"), shape),
               {.action = [](int, const PipelineAction&) { return 1.0; }, .transfer = 0.5});
  EXPECT_DOUBLE_EQ(timeline.seconds, 5.0);  // F, ½, F, B, ½, B
  EXPECT_DOUBLE_EQ(timeline.idle_fraction(), 0.6);
}

TEST(Timeline, FindsADeadlock) {
  // Stage 0 wants the gradient of micro-batch 0 before it sends micro-batch 1, stage 1 the other way round.
  const Orders orders = {{forward(0), backward(0), forward(1), backward(1)},
                         {forward(0), forward(1), backward(0), backward(1)}};
  const std::string why = complaint({2, 1, 2}, orders);
  EXPECT_NE(why.find("stage 0 at B0 waits for its input from stage 1"), std::string::npos) << why;
  EXPECT_NE(why.find("stage 1 at F1 waits for its input from stage 0"), std::string::npos) << why;
}

TEST(Timeline, FindsADeadlockOfFullBuffers) {
  // All first chunks before any second: the messages from the last stage to the first pile up beyond the
  // buffers.
  const int m = 16;
  Orders orders(2);
  for (std::vector<PipelineAction>& order : orders) {
    for (const int chunk : {0, 1}) {
      for (int i = 0; i < m; ++i) order.push_back(forward(i, chunk));
    }
    for (const int chunk : {1, 0}) {
      for (int i = 0; i < m; ++i) order.push_back(backward(i, chunk));
    }
  }
  const std::string why = complaint({2, 2, m}, orders);
  EXPECT_NE(why.find("send buffer"), std::string::npos) << why;
}

TEST(Timeline, FindsMessagesInAnotherOrder) {
  // Each stage is in order by itself, but stage 0 sends F2.0 before F0.1, and stage 1 wants them the other way.
  const Orders orders = {{forward(0), forward(1), forward(2), forward(0, 1), forward(1, 1), forward(2, 1)},
                         {forward(0), forward(1), forward(0, 1), forward(2), forward(1, 1), forward(2, 1)}};
  Orders complete = orders;
  for (std::vector<PipelineAction>& order : complete) {
    for (const int chunk : {1, 0}) {
      for (int i = 0; i < 3; ++i) order.push_back(backward(i, chunk));
    }
  }
  const std::string why = complaint({2, 2, 3}, complete);
  EXPECT_NE(why.find("stage 1 would run F0.1"), std::string::npos) << why;
  EXPECT_NE(why.find("micro-batch 2 of its chunk 0"), std::string::npos) << why;
}

TEST(Timeline, FindsOrdersThatBreakTheRules) {
  const auto of_one = [](std::vector<PipelineAction> order, std::int64_t m) {
    return complaint({1, 1, m}, {std::move(order)});
  };
  EXPECT_EQ(of_one({forward(0), backward(0)}, 1), "");
  EXPECT_EQ(of_one({backward(0), forward(0)}, 1), "in the order of stage 0, B0 comes before what it needs");
  EXPECT_EQ(of_one({forward(0)}, 1), "in the order of stage 0, B0 is missing");
  EXPECT_NE(of_one({forward(0), forward(0), backward(0)}, 1), "");
  EXPECT_NE(of_one({forward(1), forward(0), backward(0), backward(1)}, 2), "");
  EXPECT_NE(of_one({forward(0, 1), backward(0, 1)}, 1), "");
  // Weights for all or none.
  EXPECT_EQ(
      of_one({forward(0), backward(0), {PipelineStep::kBackwardWeight, 0, 0}, forward(1), backward(1)}, 2),
      "in the order of stage 0, W1 is missing");
  // Two chunks of one stage hand over without a message.
  EXPECT_NE(complaint({1, 2, 1}, {{forward(0, 1), forward(0, 0), backward(0, 1), backward(0, 0)}}), "");
  EXPECT_NE(complaint({1, 2, 1}, {{forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)}}), "");
  EXPECT_EQ(complaint({1, 2, 1}, {{forward(0, 0), forward(0, 1), backward(0, 1), backward(0, 0)}}), "");
}

std::string refusal(const PipelineSchedule& schedule, const PipelineShape& shape) {
  try {
    check_schedule(schedule, shape);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckSchedule, NamesTheKeysAndWhatWouldDo) {
  const std::string chunks = refusal(*find_schedule("1f1b"), {4, 2, 8});
  EXPECT_NE(chunks.find("mesh.schedule = \"1f1b\""), std::string::npos) << chunks;
  EXPECT_NE(chunks.find("mesh.virtual_stages = 2"), std::string::npos) << chunks;
  EXPECT_NE(chunks.find("\"interleaved\""), std::string::npos) << chunks;
  EXPECT_NE(refusal(*find_schedule("1f1b"), {4, 1, 0}).find("0 micro-batches"), std::string::npos);
  EXPECT_EQ(refusal(*find_schedule("1f1b"), {4, 1, 1}), "");
}

TEST(CheckSchedule, RefusesASchedulesDeadlock) {
  PipelineSchedule schedule = *find_schedule("1f1b");
  schedule.name = "broken";
  // Alternating from the start on every stage but the last, which wants all first.
  schedule.order = [](const PipelineShape& shape, int stage) {
    return stage + 1 < shape.stages ? find_schedule("1f1b")->order({1, 1, shape.micro_batches}, 0)
                                    : find_schedule("gpipe")->order(shape, stage);
  };
  EXPECT_EQ(refusal(schedule, {3, 1, 1}), "");
  const std::string why = refusal(schedule, {3, 1, 2});
  EXPECT_NE(why.find("mesh.schedule = \"broken\""), std::string::npos) << why;
  EXPECT_NE(why.find("mesh.pp = 3"), std::string::npos) << why;
  EXPECT_NE(why.find("2 micro-batches"), std::string::npos) << why;
  EXPECT_NE(why.find("stage 2 at F1 waits for its input from stage 1"), std::string::npos) << why;
}

}  // namespace
}  // namespace meshtrain
