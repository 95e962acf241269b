// The shm engine passes the conformance suite, with threads and with processes as ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <filesystem>
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
  expect_none(run_ranks(kind, ranks, [](World& world) { return testing::run_conformance(world); }));
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

}  // namespace
}  // namespace meshtrain
