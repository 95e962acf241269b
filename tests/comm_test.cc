// The shm engine passes the conformance suite, with threads and with processes as ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <string>
#include <vector>

#include "comm/engines.h"
#include "comm_conformance.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

using Failures = std::vector<std::vector<std::string>>;
using Ranks = ShmArea::Ranks;

Failures run_ranks(Ranks kind, int ranks, const testing::RankBody& body) {
  const WorldOptions options{.deadline = std::chrono::seconds(60)};
  return kind == Ranks::kThreads ? testing::run_threads(ranks, options, body)
                                 : testing::run_processes(ranks, options, body);
}

void expect_none(const Failures& failures) {
  for (const std::vector<std::string>& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
}

class CommConformance : public ::testing::TestWithParam<std::tuple<Ranks, int>> {};

TEST_P(CommConformance, Passes) {
  const auto [kind, ranks] = GetParam();
  // An odd number of ranks beyond 4 is for the tree, which small counts show.
  const auto extent = ranks == 7 ? testing::Extent::kQuick : testing::Extent::kFull;
  expect_none(run_ranks(kind, ranks, [&](World& world) { return testing::run_conformance(world, extent); }));
}

TEST(SingleWorld, OneRankNeedsNoEngine) {
  const std::unique_ptr<World> world = make_single_world();
  expect_none({testing::run_conformance(*world)});
}

INSTANTIATE_TEST_SUITE_P(Shm, CommConformance,
                         ::testing::Combine(::testing::Values(Ranks::kThreads, Ranks::kProcesses),
                                            ::testing::Values(1, 2, 3, 4, 7, 8)),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param) == Ranks::kThreads ? "Threads"
                                                                                      : "Processes") +
                                  std::to_string(std::get<1>(p.param));
                         });

TEST(Comm, BarrierWaitsForEveryRank) {
  constexpr int kRanks = 4;
  constexpr int kRounds = 200;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& entered = *new (page) std::atomic<int>(0);
  for (const Ranks kind : {Ranks::kThreads, Ranks::kProcesses}) {
    entered = 0;
    expect_none(run_ranks(kind, kRanks, [&](World& world) {
      const auto comm = world.group("all", {3, 1, 0, 2});
      std::vector<std::string> failures;
      for (int round = 1; round <= kRounds; ++round) {
        entered.fetch_add(1);
        comm->barrier();
        if (entered.load() < kRanks * round) failures.emplace_back("left a barrier too early");
        comm->barrier();
      }
      return failures;
    }));
    EXPECT_EQ(entered.load(), kRanks * kRounds);
  }
  munmap(page, 4096);
}

// A run makes its groups again and again, e.g. for each mesh that it compares.
TEST(Comm, GroupsComeAndGo) {
  for (const Ranks kind : {Ranks::kThreads, Ranks::kProcesses}) {
    expect_none(run_ranks(kind, 2, [](World& world) {
      std::vector<std::string> failures;
      for (int i = 0; i < 2000; ++i) {
        const auto comm = world.group("all", {0, 1});
        float value = 1.0F;
        const Tensor data(&value, DType::kF32, {1});
        comm->all_reduce(data, data, ReduceOp::kSum);
        if (value != 2.0F) failures.push_back("group " + std::to_string(i) + " sums wrongly");
      }
      return failures;
    }));
  }
}

}  // namespace
}  // namespace meshtrain
