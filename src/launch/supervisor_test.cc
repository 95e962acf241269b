#include "launch/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "comm/communicator.h"
#include "launch/launch_testing.h"

namespace meshtrain {
namespace {

// Forked ranks do not go with ThreadSanitizer, which has a thread of its own.
#ifdef __SANITIZE_THREAD__
#define SKIP_UNDER_TSAN() GTEST_SKIP() << "needs a process of one thread"
#else
#define SKIP_UNDER_TSAN()
#endif

struct Notes {
  std::array<std::atomic<int>, 8> of_rank{};
  std::array<std::atomic<pid_t>, 8> process{};
  std::atomic<int> arrived{0};
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void wait_for(const Shared<Notes>& notes, int arrived) {
  if (!wait_until([&] { return notes->arrived >= arrived; })) throw std::runtime_error("nobody came");
}

class Supervisor : public testing::Test {
 protected:
  void SetUp() override { SKIP_UNDER_TSAN(); }
  Shared<Notes> notes_;
};

TEST_F(Supervisor, RunsEveryRankOnceInAProcessOfItsOwn) {
  const Ended ended = run_processes(3, [&](World& world, int) {
    if (world.size() != 3) throw_run_error("{} ranks", world.size());
    notes_->of_rank[static_cast<std::size_t>(world.rank())]++;
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    if (getpgrp() != getpid()) throw_run_error("not a process group of its own");
  });
  EXPECT_EQ(ended.status, 0) << ended;
  EXPECT_EQ(ended.output, "");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(notes_->of_rank[rank], 1);
    EXPECT_NE(notes_->process[rank], notes_->process[(rank + 1) % 3]);
    EXPECT_EQ(process_state(notes_->process[rank]), 0);
  }
}

TEST_F(Supervisor, NothingIsLeftToReapAndHandlersAreAsBefore) {
  ForkedProgram program([] {
    std::signal(SIGCHLD, SIG_IGN);  // as some parents leave it
    std::signal(SIGINT, SIG_IGN);
    run_local_ranks({.ranks = 2}, [](World&, int) {});
    if (waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) throw_run_error("children are left");
    if (std::signal(SIGCHLD, SIG_DFL) != SIG_IGN) throw_run_error("another handler of SIGCHLD");
    sigset_t mask;
    sigprocmask(SIG_SETMASK, nullptr, &mask);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD}) {
      if (sigismember(&mask, signal) != 0) throw_run_error("signal {} is blocked", signal);
    }
  });
  EXPECT_EQ(program.finish(), 0) << program.output();
}

TEST_F(Supervisor, WhatWaitsInBuffersIsWrittenOnce) {
  ForkedProgram program([] {
    std::cout << "before ";
    std::printf("the fork\n");
    run_local_ranks({.ranks = 3}, [](World&, int) {});
  });
  EXPECT_EQ(program.finish(), 0);
  EXPECT_EQ(program.output(), "before the fork\n");
}

TEST_F(Supervisor, AUserErrorOfAllRanksIsSaidOnce) {
  const Ended ended = run_processes(4, [](World&, int) { throw_user_error("data.train: no such file x"); });
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(ended.output, "meshtrain: data.train: no such file x\n");
}

TEST_F(Supervisor, UserErrorsThatDifferNameTheRank) {
  const Ended ended = run_processes(2, [&](World& world, int) {
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    notes_->arrived++;
    wait_for(notes_, 2);
    if (world.rank() == 0) wait_until([&] { return is_gone(notes_->process[1]); });
    throw_user_error("mistake {}", world.rank());
  });
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(ended.output, "meshtrain: rank 1: mistake 1\n");
}

TEST_F(Supervisor, ARunErrorNamesItsRankAndOthersLeave) {
  const Ended ended = run_processes(3, [](World& world, int) {
    const auto all = everyone(world);
    if (world.rank() == 2) throw_run_error("no space left on device");
    all->barrier();
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.output, "meshtrain: rank 2: no space left on device\n");
}

TEST_F(Supervisor, AnyOtherExceptionIsUnexpected) {
  const Ended ended = run_processes(2, [](World& world, int) {
    if (world.rank() == 1) throw std::out_of_range("index 7");
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.output, "meshtrain: unexpected failure: rank 1: index 7\n");
  const Ended odd = run_processes(2, [](World&, int) { throw 5; });
  EXPECT_EQ(odd.status, 1);
  EXPECT_EQ(odd.output, "meshtrain: unexpected failure: an exception that is none of the standard library's\n");
}

TEST_F(Supervisor, TheCauseIsNotARankThatLostAnother) {
  const Ended ended = run_processes(3, [&](World& world, int) {
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    notes_->arrived++;
    if (world.rank() != 1) throw CommError("rank 1 is gone");
    wait_for(notes_, 3);
    wait_until([&] { return is_gone(notes_->process[0]) && is_gone(notes_->process[2]); });
    throw_run_error("the loss is not finite");
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.output, "meshtrain: rank 1: the loss is not finite\n");
}

TEST_F(Supervisor, TheFirstOfSeveralFailuresCounts) {
  const Ended ended = run_processes(3, [&](World& world, int) {
    const auto rank = static_cast<std::size_t>(world.rank());
    notes_->process[rank] = getpid();
    notes_->arrived++;
    wait_for(notes_, 3);
    if (rank < 2) wait_until([&] { return is_gone(notes_->process[rank + 1]); });
    throw_run_error("failure {}", world.rank());
  });
  EXPECT_EQ(ended.output, "meshtrain: rank 2: failure 2\n");
}

TEST_F(Supervisor, ALongMessageIsCutBetweenCharacters) {
  std::string message = "x";
  for (int i = 0; i < 10'000; ++i) message += "é";
  const Ended ended = run_processes(2, [&](World&, int) { throw UserError(message); });
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(ended.output, "meshtrain: " + message.substr(0, 8191) + "\n");
}

TEST_F(Supervisor, ARankThatASignalKilledIsNamed) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT}) {
    notes_->process[1] = 0;
    const Ended ended = run_processes(3, [&](World& world, int) {
      const auto all = everyone(world);
      if (world.rank() == 1) {
        notes_->process[1] = getpid();
        std::signal(signal, SIG_DFL);
        kill(getpid(), signal);
      }
      all->barrier();
    });
    EXPECT_EQ(ended.status, 1);
    const std::string expected = "meshtrain: rank 1 (process " + std::to_string(notes_->process[1]) +
                                 ") was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) +
                                 "); the other ranks were stopped";
    EXPECT_EQ(ended.output.substr(0, expected.size()), expected);
    EXPECT_EQ(ended.output.find("out of memory") != std::string::npos, signal == SIGKILL);
  }
}

TEST_F(Supervisor, ARankThatExitsIsNamedWhateverItsStatus) {
  for (const int status : {0, 3}) {
    const Ended ended = run_processes(2, [&](World& world, int) {
      if (world.rank() == 1) std::_Exit(status);
    });
    EXPECT_EQ(ended.status, 1);
    EXPECT_TRUE(std::regex_match(
        ended.output,
        std::regex("meshtrain: rank 1 \\(process \\d+\\) left with exit status " + std::to_string(status) +
                   " before its work was done; the other ranks were stopped\n")))
        << ended;
  }
}

TEST_F(Supervisor, RanksThatIgnoreEverythingAreKilled) {
  const Ended ended = run_processes(3, [&](World& world, int) {
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    std::signal(SIGTERM, SIG_IGN);
    notes_->arrived++;
    wait_for(notes_, 3);
    if (world.rank() == 2) raise(SIGSTOP);
    if (world.rank() == 1) {
      wait_until([&] { return process_state(notes_->process[2]) == 'T'; });
      throw_run_error("failed");
    }
    for (;;) sleep_ms(1000);
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.output, "meshtrain: rank 1: failed\n");
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(is_gone(notes_->process[rank]));
}

TEST_F(Supervisor, RanksDieWithIt) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come here
  ForkedProgram program([&] {
    run_local_ranks({.ranks = 3}, [&](World& world, int) {
      notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
      std::signal(SIGTERM, SIG_IGN);
      notes_->arrived++;
      for (;;) sleep_ms(1000);
    });
  });
  wait_for(notes_, 3);
  kill(program.process(), SIGKILL);
  EXPECT_EQ(program.finish(), -SIGKILL);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(wait_until([&] { return is_gone(notes_->process[rank]); }));
  }
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// The program's own handler, in short: the first signal asks, the second ends.
volatile std::sig_atomic_t signals_seen = 0;
void on_signal(int signal) {
  signals_seen = signals_seen + 1;
  if (signals_seen < 2) return;
  std::signal(signal, SIG_DFL);
  raise(signal);
}

TEST_F(Supervisor, CtrlCReachesEveryRankOnceAndTheyEndInPeace) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    notes_->arrived = 0;
    ForkedProgram program([&] {
      std::signal(SIGINT, on_signal);
      std::signal(SIGTERM, on_signal);
      std::signal(SIGUSR1, on_signal);
      run_local_ranks({.ranks = 3}, [&](World& world, int) {
        notes_->arrived++;
        wait_until([] { return signals_seen > 0; });
        sleep_ms(100);  // a second one would have come by now
        notes_->of_rank[static_cast<std::size_t>(world.rank())] = signals_seen;
      });
    });
    wait_for(notes_, 3);
    kill(-program.process(), signal);  // the whole foreground group, as a terminal does
    EXPECT_EQ(program.finish(), 0) << program.output();
    EXPECT_EQ(program.output(), "");
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(notes_->of_rank[rank], 1);
  }
}

TEST_F(Supervisor, TheSecondCtrlCEndsAllAndItself) {
  ForkedProgram program([&] {
    std::signal(SIGINT, on_signal);
    run_local_ranks({.ranks = 3}, [&](World& world, int) {
      notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
      notes_->arrived++;
      if (!wait_until([] { return signals_seen > 0; })) return;
      notes_->arrived++;
      for (;;) sleep_ms(1000);  // saving takes for ever
    });
  });
  wait_for(notes_, 3);
  kill(program.process(), SIGINT);
  wait_for(notes_, 6);
  kill(program.process(), SIGINT);
  EXPECT_EQ(program.finish(), -SIGINT);
  EXPECT_EQ(program.output(), "");
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(is_gone(notes_->process[rank]));
}

TEST_F(Supervisor, CtrlZStopsTheRanksToo) {
  ForkedProgram program([&] {
    run_local_ranks({.ranks = 2}, [&](World& world, int) {
      notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
      notes_->arrived++;
      wait_until([&] { return notes_->arrived > 2; });
    });
  });
  wait_for(notes_, 2);
  const std::vector<pid_t> all = {notes_->process[0], notes_->process[1], program.process()};
  kill(program.process(), SIGTSTP);
  for (const pid_t process : all) EXPECT_TRUE(wait_until([&] { return process_state(process) == 'T'; }));
  kill(program.process(), SIGCONT);
  for (const pid_t process : all) EXPECT_TRUE(wait_until([&] { return process_state(process) != 'T'; }));
  notes_->arrived++;
  EXPECT_EQ(program.finish(), 0);
}

TEST_F(Supervisor, LinesOfRanksAreWholeAndNamed) {
  const Ended ended = run_processes(4, [&](World& world, int) {
    if (world.rank() == 0) {
      std::fprintf(stderr, "zero\n");
      return;
    }
    const int mine = world.rank();
    for (int line = 0; line < 50; ++line) {
      for (const char* part : {"one ", "two ", "three"}) {
        std::fputs(part, line % 2 == 0 ? stderr : stdout);
        std::fflush(stdout);
        if (line % 10 == mine) sleep_ms(1);
      }
      std::fputs("\n", line % 2 == 0 ? stderr : stdout);
      std::fflush(stdout);
    }
    std::fputs("no end", stderr);
  });
  EXPECT_EQ(ended.status, 0);
  std::map<std::string, int> count;
  for (const std::string& line : lines_of(ended.output)) ++count[line];
  std::map<std::string, int> expected = {{"zero", 1}};
  for (int rank = 1; rank < 4; ++rank) {
    expected["[rank " + std::to_string(rank) + "] one two three"] = 50;
    expected["[rank " + std::to_string(rank) + "] no end"] = 1;
  }
  EXPECT_EQ(count, expected);
}

TEST_F(Supervisor, OutputLongerThanAPipeArrives) {
  const std::string line(300'000, 'x');
  const Ended ended = run_processes(2, [&](World& world, int) {
    if (world.rank() == 1) std::cout << line << "\nlast\n";
  });
  EXPECT_EQ(ended.status, 0);
  std::size_t letters = 0;
  const std::vector<std::string> lines = lines_of(ended.output);
  for (const std::string& part : lines) {
    EXPECT_EQ(part.substr(0, 9), "[rank 1] ");
    letters += part.size() - 9;
  }
  EXPECT_EQ(letters, line.size() + 4);
  EXPECT_EQ(lines.back(), "[rank 1] last");
}

TEST_F(Supervisor, AProcessThatARankLeftBehindHoldsNothingUp) {
  const Ended ended = run_processes(2, [&](World& world, int) {
    if (world.rank() != 1) return;
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        sleep_ms(1);
        if (write(STDERR_FILENO, "still here\n", 11) < 0) _exit(0);
      }
    }
    notes_->process[0] = child;
  });
  kill(notes_->process[0], SIGKILL);
  EXPECT_EQ(ended.status, 0);
}

TEST_F(Supervisor, AReaderThatWentAwayIsNoFailure) {
  ForkedProgram program([] {
    std::signal(SIGPIPE, SIG_IGN);
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) throw_run_error("no pipe");
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    run_local_ranks({.ranks = 2}, [](World&, int) { std::fprintf(stderr, "nobody reads this\n"); });
  });
  EXPECT_EQ(program.finish(), 0);
}

TEST_F(Supervisor, RanksAreForkedFromOneThreadOnly) {
  ForkedProgram program([] {
    std::promise<void> refused;
    std::thread other([&] { refused.get_future().wait(); });
    try {
      run_local_ranks({.ranks = 2}, [](World&, int) {});
    } catch (const std::logic_error& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    refused.set_value();
    other.join();
  });
  EXPECT_EQ(program.finish(), 0);
  EXPECT_NE(program.output().find("ranks are forked before any thread is started"), std::string::npos);
}

TEST_F(Supervisor, RanksAreBoundToTheirShareOfTheCores) {
  const std::vector<int> all = available_cores();
  for (const int ranks : {2, 5}) {
    const bool bound = static_cast<int>(all.size()) >= ranks;
    unsetenv("OMP_NUM_THREADS");
    const Ended ended = run_processes(ranks, [&](World& world, int threads) {
      const std::size_t cores = available_cores().size();
      notes_->of_rank[static_cast<std::size_t>(world.rank())] = static_cast<int>(cores);
      if (threads != (bound ? static_cast<int>(cores) : 1)) throw_run_error("{} threads", threads);
    });
    EXPECT_EQ(ended.status, 0) << ended;
    int sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += notes_->of_rank[static_cast<std::size_t>(rank)];
    EXPECT_EQ(sum, static_cast<int>(all.size()) * (bound ? 1 : ranks));
  }
}

}  // namespace
}  // namespace meshtrain
