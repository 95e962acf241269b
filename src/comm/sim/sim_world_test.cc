// The simulated engine counts what a real one counts; the closed forms are those of ring algorithms.
#include <gtest/gtest.h>

#include <memory>

#include "comm/engines.h"
#include "comm/ring_bytes.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

// One call of everything, with odd sizes.
CommStats call_everything(World& world) {
  const std::unique_ptr<Communicator> group = world.everyone("all");
  const std::int64_t k = world.size();
  std::vector<float> small(13);
  std::vector<float> large(static_cast<std::size_t>(13 * k));
  const auto tensor = [](std::vector<float>& v) {
    return Tensor(v.data(), DType::kF32, {static_cast<std::int64_t>(v.size())});
  };
  group->barrier();
  group->broadcast(tensor(small), 0, Traffic::kOther);
  group->all_reduce(tensor(small), tensor(small), ReduceOp::kSum, Traffic::kGradients);
  group->reduce_scatter(tensor(large), tensor(small), ReduceOp::kSum, Traffic::kGradients);
  group->all_gather(tensor(small), tensor(large), Traffic::kParameters);
  std::vector<float> received(large.size());
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(k), 13);
  group->all_to_all(tensor(large), counts, tensor(received), counts, Traffic::kEvaluation);
  const int next = (group->rank() + 1) % group->size();
  const int previous = (group->rank() + group->size() - 1) % group->size();
  const Transfer send = {.peer = next, .data = tensor(large)};
  const Transfer receive = {.peer = previous, .data = tensor(received)};
  group->exchange({&send, 1}, {&receive, 1});
  return group->stats();
}

TEST(SimWorld, CountsWhatARealEngineCounts) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    std::vector<CommStats> real(static_cast<std::size_t>(ranks));
    const auto failures = testing::run_threads(ranks, {}, [&](World& world) {
      real[static_cast<std::size_t>(world.rank())] = call_everything(world);
      return std::vector<std::string>{};
    });
    for (const auto& of_rank : failures) EXPECT_TRUE(of_rank.empty()) << of_rank.front();
    for (int rank = 0; rank < ranks; ++rank) {
      const std::unique_ptr<World> world = make_sim_world(rank, ranks);
      const CommStats sim = call_everything(*world);
      EXPECT_EQ(sim.sent, real[static_cast<std::size_t>(rank)].sent) << rank << " of " << ranks;
      EXPECT_EQ(sim.calls, real[static_cast<std::size_t>(rank)].calls) << rank << " of " << ranks;
      // all-reduce 2 (K-1)/K S, the others (K-1)/K S.
      const std::int64_t k = ranks;
      EXPECT_EQ(sim.sent_for(Traffic::kGradients), 2 * (k - 1) * 52 / k + (k - 1) * 52);
      EXPECT_EQ(sim.sent_for(Traffic::kParameters), (k - 1) * 52);
      EXPECT_EQ(sim.sent_for(Traffic::kEvaluation), (k - 1) * 52);
      EXPECT_EQ(sim.sent_for(Traffic::kControl), k == 1 ? 0 : 52 * k);
      EXPECT_EQ(sim.sent_for(Traffic::kOther), rank == ranks - 1 ? 0 : 52);
    }
  }
}

// Published: 1e9 parameters in bf16 on 8 ranks, 3.5 GB sent a rank; 28,672 fp32 parameters on 4, 40 times.
TEST(RingBytes, ArePublishedOnes) {
  EXPECT_EQ(ring_all_reduce_bytes(2'000'000'000, 8), 3'500'000'000);
  EXPECT_EQ(40 * ring_all_reduce_bytes(28'672 * 4, 4), 6'881'280);
  EXPECT_EQ(40 * (ring_reduce_scatter_bytes(28'672 * 4, 4) + ring_all_gather_bytes(28'672 * 4, 4)), 6'881'280);
  EXPECT_EQ(ring_all_reduce_bytes(7, 1), 0);
}

// No communication at all: what is sent is there.
TEST(SingleWorld, MovesWhatItKeeps) {
  const std::unique_ptr<World> world = make_single_world();
  const std::unique_ptr<Communicator> group = world->group("self", {0});
  std::vector<float> in = {1.0F, 2.0F, 3.0F};
  std::vector<float> out(3);
  group->all_reduce(Tensor(in.data(), DType::kF32, {3}), Tensor(out.data(), DType::kF32, {3}), ReduceOp::kAvg);
  EXPECT_EQ(in, out);
  EXPECT_EQ(group->stats().sent_for(Traffic::kControl), 0);
}

}  // namespace
}  // namespace meshtrain
