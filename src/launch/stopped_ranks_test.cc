// Ranks that are stopped (SIGSTOP) while no other waits for them.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>

#include "launch/launch_testing.h"
#include "launch/supervisor.h"

namespace meshtrain {
namespace {

class StoppedRanks : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "needs a process of one thread";
#endif
  }
  struct Notes {
    std::array<std::atomic<pid_t>, 2> process{};
  };
  Shared<Notes> notes_;
};

// The last one to end, or the only one.
TEST_F(StoppedRanks, OneThatNobodyWaitsForEndsTheRunAfterTheDeadline) {
  for (const int ranks : {3, 1}) {
    ForkedProgram program([&] {
      run_process_ranks({.ranks = ranks, .world = {.deadline = std::chrono::milliseconds(200)}},
                        [&](World& world, int) {
                          if (world.rank() != 0) return;
                          notes_->process[0] = getpid();
                          raise(SIGSTOP);
                        });
    });
    EXPECT_EQ(program.finish(), 1);
    EXPECT_EQ(program.output(), "meshtrain: rank 0 (process " + std::to_string(notes_->process[0]) +
                                    ") was stopped, as by SIGSTOP, for longer than the deadline of 0.2 s\n");
    EXPECT_TRUE(is_gone(notes_->process[0]));
  }
}

// For less than that is no matter.
TEST_F(StoppedRanks, OneThatGoesOnSucceeds) {
  ForkedProgram program([&] {
    run_local_ranks({.ranks = 2, .world = {.deadline = std::chrono::milliseconds(60'000)}},
                    [&](World& world, int) {
                      notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
                      if (world.rank() == 0) raise(SIGSTOP);
                    });
  });
  EXPECT_TRUE(
      wait_until([&] {
    return process_state(notes_->process[0]) == 'T' && notes_->process[1] > 0 && is_gone(notes_->process[1]);
  }));
  sleep_ms(250);
  kill(notes_->process[0], SIGCONT);
  EXPECT_EQ(program.finish(), 0) << program.output();
}

}  // namespace
}  // namespace meshtrain
