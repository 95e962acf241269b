#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "base/trace.h"
#include "comm/engines.h"
#include "comm/ring_bytes.h"

namespace meshtrain {
namespace {

// Counts without moving anything, which is all that these tests need of an engine.
class CommunicatorOf4 : public ::testing::Test {
 protected:
  Tensor floats(std::int64_t count) { return {data_.data(), DType::kF32, {count}}; }

  std::unique_ptr<World> world_ = make_sim_world(1, 4);
  std::unique_ptr<Communicator> comm_ = world_->group("dp", {3, 1, 2, 0});
  std::vector<float> data_ = std::vector<float>(64);
};

TEST_F(CommunicatorOf4, KnowsItsPlace) {
  EXPECT_EQ(comm_->rank(), 1);
  EXPECT_EQ(comm_->size(), 4);
  EXPECT_EQ(comm_->name(), "dp");
  EXPECT_EQ(comm_->ranks(), (std::vector<int>{3, 1, 2, 0}));
}

TEST_F(CommunicatorOf4, CountsWhatARingWouldSend) {
  // 3 of 4 shares, twice: reduce-scatter and all-gather.
  comm_->all_reduce(floats(16), floats(16), ReduceOp::kSum, Traffic::kGradients);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kGradients), 2 * 3 * 16);
  comm_->reduce_scatter(floats(16), floats(4), ReduceOp::kSum, Traffic::kParameters);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kParameters), 3 * 16);
  comm_->all_gather(floats(4), floats(16), Traffic::kParameters);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kParameters), 2 * 3 * 16);
  const std::array<std::int64_t, 4> counts = {1, 2, 3, 4};
  const std::array<std::int64_t, 4> received = {0, 2, 0, 0};
  comm_->all_to_all(floats(10), counts, floats(2), received, Traffic::kOther);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kOther), 4 * (10 - 2));
  // The chain 2 → 3 → 0 → 1 ends here.
  comm_->broadcast(floats(16), 2, Traffic::kEvaluation);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kEvaluation), 0);
  comm_->broadcast(floats(16), 0, Traffic::kEvaluation);
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kEvaluation), 64);
  comm_->barrier();
  const std::vector<Transfer> sends = {{0, floats(3)}, {1, floats(5)}};
  comm_->exchange(sends, {});
  EXPECT_EQ(comm_->stats().sent_for(Traffic::kControl), 12);
  EXPECT_EQ(comm_->stats().calls, (std::array<std::int64_t, kTrafficKinds>{1, 2, 0, 0, 2, 2, 1}));
}

TEST_F(CommunicatorOf4, RefusesWhatCannotBeRight) {
  const Tensor ints(data_.data(), DType::kI32, {16});
  EXPECT_THROW(comm_->broadcast(floats(4), 4), std::logic_error);
  EXPECT_THROW(comm_->all_reduce(floats(4), floats(5), ReduceOp::kSum), std::logic_error);
  EXPECT_THROW(comm_->all_reduce(floats(16), ints, ReduceOp::kSum), std::logic_error);
  EXPECT_THROW(comm_->reduce_scatter(floats(16), floats(5), ReduceOp::kSum), std::logic_error);
  EXPECT_THROW(comm_->all_gather(floats(16), floats(16)), std::logic_error);
  const std::array<std::int64_t, 4> one = {1, 1, 1, 1};
  const std::array<std::int64_t, 4> other = {1, 2, 1, 1};
  EXPECT_THROW(comm_->all_to_all(floats(4), one, floats(4), {one.data(), 3}), std::logic_error);
  EXPECT_THROW(comm_->all_to_all(floats(5), one, floats(4), one), std::logic_error);
  EXPECT_THROW(comm_->all_to_all(floats(4), one, floats(5), other),
               std::logic_error);  // to itself 1, from itself 2
  const std::vector<Transfer> outside = {{4, floats(1)}};
  EXPECT_THROW(comm_->exchange(outside, {}), std::logic_error);
  EXPECT_THROW(comm_->exchange({}, outside), std::logic_error);
  const Tensor strided(data_.data(), DType::kF32, {2, 2}, {4, 1});
  EXPECT_THROW(comm_->broadcast(strided, 0), std::logic_error);
}

TEST_F(CommunicatorOf4, ItsCallsShowInTheTrace) {
  std::vector<float> large(1'600'000);
  const Tensor megabytes(large.data(), DType::kF32, {1'600'000});
  TraceTrack track("compute", 100);
  comm_->set_trace(&track);
  comm_->all_reduce(floats(16), floats(16), ReduceOp::kSum);
  comm_->reduce_scatter(floats(16), floats(4), ReduceOp::kSum);
  comm_->all_gather(floats(4), floats(16));
  comm_->broadcast(megabytes, 2);
  comm_->barrier();
  const std::array<std::int64_t, 4> counts = {250, 0, 0, 1};
  const std::array<std::int64_t, 4> received = {0, 0, 0, 0};
  comm_->all_to_all(Tensor(large.data(), DType::kF32, {251}), counts, floats(0), received);
  const std::vector<Transfer> sends = {{0, floats(3)}, {1, floats(5)}};
  const std::vector<Transfer> receives = {{2, floats(6)}, {1, floats(5)}};
  comm_->exchange(sends, receives);
  comm_->set_trace(nullptr);
  comm_->barrier();
  std::vector<std::string> texts;
  for (const TraceEvent& event : track.events()) {
    EXPECT_EQ(event.kind, TraceKind::kCommunication);
    texts.push_back(track.text_of(event));
  }
  // Bytes of the whole payload; of an exchange those sent or received, whichever are more, but for those to
  // itself.
  EXPECT_EQ(texts, (std::vector<std::string>{"all-reduce dp 64 B", "reduce-scatter dp 64 B",
                                             "all-gather dp 64 B", "broadcast dp 6.4 MB", "barrier dp 0 B",
                                             "all-to-all dp 1.0 kB", "exchange dp 24 B"}));
}

TEST(CommunicatorOf1, ShowsNothingInTheTrace) {
  const auto world = make_sim_world(0, 1);
  const auto comm = world->everyone("dp");
  TraceTrack track("compute", 100);
  comm->set_trace(&track);
  comm->barrier();
  EXPECT_TRUE(track.events().empty());
}

TEST(CommCallText, SaysWhatIsCalled) {
  EXPECT_EQ(to_string({.op = CommOp::kBarrier}), "barrier");
  EXPECT_EQ(to_string({.op = CommOp::kBroadcast, .dtype = DType::kI64, .root = 2, .count = 7}),
            "broadcast of 7 int64 from rank 2");
  EXPECT_EQ(
      to_string({.op = CommOp::kAllReduce, .dtype = DType::kF32, .reduce = ReduceOp::kMax, .count = 1024}),
      "all-reduce max of 1024 fp32");
  EXPECT_EQ(to_string({.op = CommOp::kAllGather, .dtype = DType::kBF16, .count = 5}), "all-gather of 5 bf16");
}

TEST(RingBytes, RoundDownAndDoNotOverflow) {
  EXPECT_EQ(ring_all_reduce_bytes(1000, 1), 0);
  EXPECT_EQ(ring_all_reduce_bytes(1001, 2), 1001);
  EXPECT_EQ(ring_reduce_scatter_bytes(10, 3), 6);  // 20 / 3
  EXPECT_EQ(ring_all_gather_bytes(std::int64_t{1} << 60, 8), (std::int64_t{7} << 57));
}

}  // namespace
}  // namespace meshtrain
