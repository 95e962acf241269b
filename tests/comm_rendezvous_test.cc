// Processes that share no parent find each other.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "comm/engines.h"
#include "comm_calls.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

using testing::all_of;
using testing::Calls;
using testing::expect_contains;
using testing::kAllOps;
using testing::Lines;
using testing::RankProcess;

constexpr std::chrono::milliseconds kLong{60'000};

struct Guest {
  int rank;
  int ranks;
};

std::vector<Lines> meet(const std::string& name, const std::vector<Guest>& guests,
                        std::chrono::milliseconds deadline) {
  const std::string unique = name + std::to_string(getpid());
  std::vector<RankProcess> processes;
  for (const Guest& guest : guests) {
    processes.emplace_back([=]() -> Lines {
      try {
        const auto area = ShmArea::rendezvous(unique, guest.rank, guest.ranks, {deadline});
        return testing::run_rank(*area, guest.rank, {deadline}, [](World& world) {
          const auto comm = world.group("all", all_of(world));
          Calls calls(world, *comm, 50'000);
          for (const CommOp op : kAllOps) calls.run(op);
          return Lines();
        });
      } catch (const CommError& e) {
        return {e.what()};
      }
    });
  }
  std::vector<Lines> lines;
  for (RankProcess& process : processes) lines.push_back(process.finish());
  return lines;
}

TEST(Rendezvous, StrangersMeetInAnyOrder) {
  for (const std::vector<Guest>& guests :
       {std::vector<Guest>{{2, 3}, {1, 3}, {0, 3}}, {{0, 3}, {2, 3}, {1, 3}}, {{0, 1}}}) {
    for (const Lines& lines : meet("any-order", guests, kLong)) EXPECT_EQ(lines, Lines());
  }
}

TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  const auto lines = meet("absent", {{0, 4}, {2, 4}}, std::chrono::milliseconds(2000));
  for (const Lines& of_rank : lines) expect_contains(of_rank, {"within 2 s", "come"});
  expect_contains(lines[0], {"ranks 1 3 did not come"});
  expect_contains(meet("no-host", {{1, 2}}, std::chrono::milliseconds(2000))[0],
                  {"rank 0 did not come within 2 s"});
}

TEST(Rendezvous, RefusesRanksThatDoNotFit) {
  const auto duplicate = meet("twice", {{0, 3}, {1, 3}, {1, 3}}, kLong);
  for (const Lines& lines : duplicate) expect_contains(lines, {"rank 1 came twice"});
  const auto unlike = meet("unlike", {{0, 2}, {1, 3}}, kLong);
  for (const Lines& lines : unlike) expect_contains(lines, {"rank 1 expects 3 ranks, rank 0 expects 2"});
}

TEST(Rendezvous, OneHostAName) {
  const auto lines = meet("hosts", {{0, 2}, {0, 2}}, std::chrono::milliseconds(3000));
  const auto taken = [](const Lines& of_rank) {
    return of_rank.at(0).find("the name is taken") != std::string::npos;
  };
  EXPECT_TRUE(taken(lines[0]) != taken(lines[1]));
}

}  // namespace
}  // namespace meshtrain
