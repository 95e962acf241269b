#include "launch/thread_ranks.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "launch/launch.h"

namespace meshtrain {
namespace {

void run(int ranks, const RankBody& body) {
  run_local_ranks({.ranks = ranks, .ranks_as = RanksAs::kThreads}, body);
}

template <class Error>
std::string message_of(int ranks, const RankBody& body) {
  try {
    run(ranks, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(ThreadRanks, RunOnceEachWithTheirName) {
  std::mutex mutex;
  std::set<std::string> names;
  std::set<std::thread::id> threads;
  run(4, [&](World& world, int) {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    const std::lock_guard lock(mutex);
    EXPECT_EQ(name.data(), "rank " + std::to_string(world.rank()));
    EXPECT_EQ(world.size(), 4);
    names.insert(name.data());
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(names.size(), 4U);
  EXPECT_EQ(threads.size(), 4U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(ThreadRanks, OneRankRunsInPlace) {
  const std::thread::id here = std::this_thread::get_id();
  for (const RanksAs as : {RanksAs::kThreads, RanksAs::kProcesses}) {
    int ran = 0;
    run_local_ranks({.ranks = 1, .ranks_as = as}, [&](World& world, int threads) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      EXPECT_EQ(world.rank(), 0);
      EXPECT_EQ(world.size(), 1);
      EXPECT_GE(threads, 1);
      ++ran;
    });
    EXPECT_EQ(ran, 1);
    EXPECT_THROW(
        run_local_ranks({.ranks = 1, .ranks_as = as}, [](World&, int) { throw std::out_of_range("x"); }),
        std::out_of_range);
  }
}

TEST(ThreadRanks, FailuresFollowTheRulesOfProcesses) {
  EXPECT_EQ(message_of<UserError>(3, [](World&, int) { throw_user_error("mistake"); }), "mistake");
  EXPECT_EQ(message_of<RunError>(3,
                                 [](World& world, int) {
                                   if (world.rank() == 1) throw_run_error("disk full");
                                 }),
            "rank 1: disk full");
  EXPECT_EQ(message_of<RunError>(3,
                                 [](World& world, int) {
                                   if (world.rank() == 2) throw AgreedError("disk full");
                                   throw CommError("rank 2 is gone");
                                 }),
            "disk full");
  EXPECT_EQ(message_of<std::runtime_error>(3,
                                           [](World& world, int) {
                                             if (world.rank() == 2) throw std::out_of_range("index 7");
                                           }),
            "rank 2: index 7");
  EXPECT_EQ(message_of<std::runtime_error>(2, [](World&, int) { throw 5; }),
            "an exception that is none of the standard library's");
}

TEST(ThreadRanks, TheFirstCauseIsThrownWhenAllHaveEnded) {
  std::atomic<int> lost{0};
  std::atomic<int> ended{0};
  const std::string message = message_of<RunError>(4, [&](World& world, int) {
    if (world.rank() != 3) {
      ++lost;
      ++ended;
      throw CommError("rank 3 is gone");
    }
    while (lost < 3) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++ended;
    throw_run_error("not finite");
  });
  EXPECT_EQ(message, "rank 3: not finite");
  EXPECT_EQ(ended, 4);
}

TEST(ThreadRanks, AreBoundToTheirShareOfTheCoresAndTheCallerIsNot) {
  const std::vector<int> all = available_cores();
  const int ranks = 2;
  std::mutex mutex;
  std::vector<int> seen;
  run(ranks, [&](World&, int) {
    const std::vector<int> mine = available_cores();
    const std::lock_guard lock(mutex);
    seen.insert(seen.end(), mine.begin(), mine.end());
  });
  std::sort(seen.begin(), seen.end());
  if (static_cast<int>(all.size()) >= ranks) {
    EXPECT_EQ(seen, all);
  }
  EXPECT_EQ(available_cores(), all);
}

}  // namespace
}  // namespace meshtrain
