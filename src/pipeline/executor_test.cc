// The executor between real ranks, with a work that numbers its messages: what arrives must be what the
// neighbouring piece wrote for the same micro-batch.
#include "pipeline/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/philox.h"
#include "base/round_up.h"
#include "comm_ranks.h"
#include "pipeline/pipeline_testing.h"
#include "pipeline/timeline.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kElements = 37;
constexpr std::int64_t kMessageBytes = kElements * 4;
constexpr std::int64_t kMostMicroBatches = 9;

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

PipelineExecutor make_executor(const PipelineShape& shape, World& world, Device& device) {
  return {shape, world.rank(), world, all_ranks(world.size()), device, DType::kF32, {kElements}};
}

// What piece `piece` writes for a micro-batch: unlike any other message of the test.
float message(bool forward, int piece, std::int64_t micro_batch, int run, std::int64_t element) {
  const std::int64_t number = ((run * 2 + (forward ? 1 : 0)) * 16 + piece) * 16 + micro_batch;
  return static_cast<float>(number * 64 + element);
}

// Reads and writes messages, and now and then takes its time.
class NumberedWork : public PipelineWork {
 public:
  NumberedWork(const PipelineShape& shape, int stage) : shape_(shape), stage_(stage) {}

  void begin_run(int run) {
    run_ = run;
    done.clear();
  }
  void forward(int chunk, std::int64_t micro_batch, const Tensor& in, const Tensor& out) override {
    const int piece = piece_of(chunk);
    const bool last = piece + 1 == shape_.pieces();
    pass(true, micro_batch, in, piece == 0 ? -1 : piece - 1, out, last ? -1 : piece);
    done.push_back({PipelineStep::kForward, chunk, micro_batch});
  }
  void backward(int chunk, std::int64_t micro_batch, const Tensor& d_out, const Tensor& d_in) override {
    const int piece = piece_of(chunk);
    const bool last = piece + 1 == shape_.pieces();
    pass(false, micro_batch, d_out, last ? -1 : piece + 1, d_in, piece == 0 ? -1 : piece);
    done.push_back({PipelineStep::kBackward, chunk, micro_batch});
  }
  void backward_weight(int chunk, std::int64_t micro_batch) override {
    done.push_back({PipelineStep::kBackwardWeight, chunk, micro_batch});
  }

  std::vector<PipelineAction> done;
  std::vector<std::string> failures;

 private:
  int piece_of(int chunk) const { return chunk * shape_.stages + stage_; }

  // -1: there is no message.
  void pass(bool forward, std::int64_t micro_batch, const Tensor& in, int writer, const Tensor& out,
            int piece) {
    const std::string what =
        fmt::format("stage {} run {} {}{}: ", stage_, run_, forward ? 'F' : 'B', micro_batch);
    if (in.defined() != (writer >= 0)) failures.push_back(what + "input");
    if (out.defined() != (piece >= 0)) failures.push_back(what + "output");
    check_message(what + "at first", forward, micro_batch, in, writer);
    if (out.defined()) {
      for (std::int64_t i = 0; i < kElements; ++i) {
        out.data<float>()[i] = message(forward, piece, micro_batch, run_, i);
      }
    }
    const std::uint32_t chance = random_.bits(++sleeps_) % 8;
    if (chance < 2) std::this_thread::sleep_for(std::chrono::microseconds(100 * (chance + 1)));
    check_message(what + "at the end", forward, micro_batch, in, writer);
  }

  void check_message(const std::string& what, bool forward, std::int64_t micro_batch, const Tensor& in,
                     int writer) {
    for (std::int64_t i = 0; in.defined() && i < kElements; ++i) {
      const float expected = message(forward, writer, micro_batch, run_, i);
      if (in.data<float>()[i] == expected) continue;
      failures.push_back(fmt::format("{}: {} in place of {}", what, in.data<float>()[i], expected));
      return;
    }
  }

  PipelineShape shape_;
  int stage_;
  int run_ = 0;
  RandomStream random_{static_cast<std::uint64_t>(stage_), "sleeps"};
  std::uint64_t sleeps_ = 0;
};

void expect_no_failures(const std::vector<std::vector<std::string>>& failures) {
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
}

std::vector<PipelineAction> forward_only(std::vector<PipelineAction> order) {
  std::erase_if(order, [](const PipelineAction& action) { return action.step != PipelineStep::kForward; });
  return order;
}

// Messages of one micro-batch that leave a stage.
std::int64_t activations_from(const PipelineShape& shape, int stage) {
  return shape.chunks - (stage + 1 == shape.stages ? 1 : 0);
}
std::int64_t gradients_from(const PipelineShape& shape, int stage) {
  return shape.chunks - (stage == 0 ? 1 : 0);
}

void expect_bytes(const CommStats& sent, std::int64_t training, std::int64_t evaluation,
                  std::vector<std::string>& failures) {
  CommStats expected;
  expected.sent[static_cast<std::size_t>(Traffic::kPipeline)] = training * kMessageBytes;
  expected.sent[static_cast<std::size_t>(Traffic::kEvaluation)] = evaluation * kMessageBytes;
  for (std::size_t kind = 0; kind < kTrafficKinds; ++kind) {
    if (sent.sent[kind] == expected.sent[kind]) continue;
    failures.push_back(fmt::format("{} bytes of {} in place of {}", sent.sent[kind],
                                   name_of(static_cast<Traffic>(kind)), expected.sent[kind]));
  }
}

// One executor runs training and forward-only orders of every number of micro-batches, one after the other.
std::vector<std::string> run_stage(const PipelineSchedule& schedule, PipelineShape shape, World& world) {
  const std::unique_ptr<Device> device = world.make_device();
  const int stage = world.rank();
  PipelineExecutor executor = make_executor(shape, world, *device);
  NumberedWork work(shape, stage);
  int run = 0;
  std::int64_t training = 0;
  std::int64_t evaluation = 0;
  for (shape.micro_batches = 1; shape.micro_batches <= kMostMicroBatches; ++shape.micro_batches) {
    const std::vector<PipelineAction> order = schedule.order(shape, stage);
    const std::int64_t activations = activations_from(shape, stage) * shape.micro_batches;
    work.begin_run(run++);
    executor.run(order, work, Traffic::kPipeline);
    if (work.done != order) work.failures.emplace_back("another order: " + text_of(work.done, shape.chunks));
    training += activations + gradients_from(shape, stage) * shape.micro_batches;
    if (shape.micro_batches % 2 == 0) continue;  // also step after step without an evaluation between them
    work.begin_run(run++);
    executor.run(forward_only(order), work, Traffic::kEvaluation);
    if (work.done != forward_only(order)) work.failures.emplace_back("another forward-only order");
    evaluation += activations;
  }
  executor.settle();
  expect_bytes(executor.sent(), training, evaluation, work.failures);
  return work.failures;
}

class Executor : public ::testing::TestWithParam<std::string> {};

TEST_P(Executor, BringsEveryMessageToTheSameMicroBatchOfTheNextPiece) {
  const PipelineSchedule& schedule = *find_schedule(GetParam());
  for (int stages = 1; stages <= 4; ++stages) {
    const int most_chunks = schedule.takes_chunks && stages > 1 ? 3 : 1;
    for (int chunks = 1; chunks <= most_chunks; ++chunks) {
      SCOPED_TRACE(to_string(PipelineShape{stages, chunks, 1}));
      expect_no_failures(testing::run_threads(stages, {}, [&](World& world) {
        return run_stage(schedule, {.stages = stages, .chunks = chunks}, world);
      }));
    }
  }
}

// The planner counts the bytes and the memory that a run sends and takes.
TEST_P(Executor, CountsTheSameOnASimulatedDevice) {
  const PipelineSchedule& schedule = *find_schedule(GetParam());
  class NoWork final : public PipelineWork {
    void forward(int, std::int64_t, const Tensor&, const Tensor&) override {}
    void backward(int, std::int64_t, const Tensor&, const Tensor&) override {}
    void backward_weight(int, std::int64_t) override {}
  };
  const PipelineShape shape = {.stages = 3, .chunks = schedule.takes_chunks ? 2 : 1, .micro_batches = 5};
  for (int stage = 0; stage < shape.stages; ++stage) {
    const std::unique_ptr<World> world = make_sim_world(stage, shape.stages);
    const std::unique_ptr<Device> device = world->make_device();
    PipelineExecutor executor = make_executor(shape, *world, *device);
    NoWork work;
    executor.run(schedule.order(shape, stage), work, Traffic::kPipeline);
    executor.settle();
    std::vector<std::string> failures;
    expect_bytes(executor.sent(), 5 * (activations_from(shape, stage) + gradients_from(shape, stage)), 0,
                 failures);
    EXPECT_TRUE(failures.empty()) << failures.front();
    const std::int64_t neighbours = shape.chunks > 1 || stage == 1 ? 2 : 1;
    EXPECT_EQ(device->memory().peak()[MemoryCategory::kCommunication],
              neighbours * (kSendBuffers + kReceiveBuffers) * round_up(kMessageBytes, Device::kAlignment))
        << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Executor, ::testing::ValuesIn(pipeline_schedule_names()),
                         [](const auto& schedule) {
                           std::string name = schedule.param;
                           std::erase(name, '-');
                           return name;
                         });

// While its neighbour is busy with the first message, a stage fills all buffers of both ends.
TEST(ExecutorBuffers, LetAStageRunAhead) {
  constexpr std::int64_t kAhead = kSendBuffers + kReceiveBuffers;
  std::atomic<std::int64_t> sent = 0;
  class Work final : public PipelineWork {
   public:
    Work(int stage, std::atomic<std::int64_t>& sent) : stage_(stage), sent_(sent) {}
    void forward(int, std::int64_t micro_batch, const Tensor&, const Tensor&) override {
      if (stage_ == 0) sent_ = micro_batch + 1;
      for (int tries = 0; stage_ == 1 && sent_ < kAhead; ++tries) {
        if (tries > 20'000) throw RunError("the stage before waits for this one");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    void backward(int, std::int64_t, const Tensor&, const Tensor&) override {}
    void backward_weight(int, std::int64_t) override {}

   private:
    int stage_;
    std::atomic<std::int64_t>& sent_;
  };
  const PipelineShape shape = {.stages = 2, .chunks = 1, .micro_batches = kAhead + 2};
  expect_no_failures(testing::run_threads(2, {}, [&](World& world) {
    const std::unique_ptr<Device> device = world.make_device();
    PipelineExecutor executor = make_executor(shape, world, *device);
    Work work(world.rank(), sent);
    executor.run(forward_only(find_schedule("gpipe")->order(shape, world.rank())), work, Traffic::kEvaluation);
    executor.settle();
    return std::vector<std::string>{};
  }));
}

// Whatever a stage does when its work fails, the others learn why, and nobody waits for the deadline.
TEST(ExecutorFailure, EndsAllStages) {
  class BrokenWork final : public NumberedWork {
   public:
    BrokenWork(const PipelineShape& shape, int stage, PipelineAction breaks)
        : NumberedWork(shape, stage), breaks_(breaks) {}
    void forward(int chunk, std::int64_t micro_batch, const Tensor& in, const Tensor& out) override {
      if (breaks_ == PipelineAction{PipelineStep::kForward, chunk, micro_batch}) throw_it();
      NumberedWork::forward(chunk, micro_batch, in, out);
    }
    void backward(int chunk, std::int64_t micro_batch, const Tensor& d_out, const Tensor& d_in) override {
      if (breaks_ == PipelineAction{PipelineStep::kBackward, chunk, micro_batch}) throw_it();
      NumberedWork::backward(chunk, micro_batch, d_out, d_in);
    }

   private:
    [[noreturn]] static void throw_it() { throw std::logic_error("the work broke"); }
    PipelineAction breaks_;
  };
  const PipelineShape shape = {.stages = 3, .chunks = 1, .micro_batches = 6};
  for (int broken = 0; broken < shape.stages; ++broken) {
    for (const PipelineStep step : {PipelineStep::kForward, PipelineStep::kBackward}) {
      SCOPED_TRACE(to_string({step, 0, 2}, 1) + " of stage " + std::to_string(broken));
      const auto failures = testing::run_threads(shape.stages, {}, [&](World& world) {
        const std::unique_ptr<Device> device = world.make_device();
        PipelineExecutor executor = make_executor(shape, world, *device);
        const int breaks_at = world.rank() == broken ? 2 : -1;
        BrokenWork work(shape, world.rank(), {step, 0, breaks_at});
        executor.run(find_schedule("1f1b")->order(shape, world.rank()), work, Traffic::kPipeline);
        executor.settle();
        return std::vector<std::string>{};
      });
      for (int stage = 0; stage < shape.stages; ++stage) {
        const auto& of_rank = failures[static_cast<std::size_t>(stage)];
        // A stage may have all that it needs already.
        if (of_rank.empty() && stage != broken) continue;
        ASSERT_EQ(of_rank.size(), 1U) << stage;
        EXPECT_NE(of_rank.front().find("the work broke"), std::string::npos) << of_rank.front();
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
