#include "launch/restarts.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "launch/launch_testing.h"

namespace meshtrain {
namespace {

Attempt attempt_with(std::int64_t dp, std::int64_t tp = 1) {
  Attempt attempt;
  attempt.config = parse_config("[model]\npreset = \"gpt2-tiny\"\n", "test",
                                {"data.seq_len=16", "train.global_batch=12", "train.micro_batch=1",
                                 "mesh.dp=" + std::to_string(dp), "mesh.tp=" + std::to_string(tp)});
  attempt.places = dp * tp;
  return attempt;
}

RanksEnd killed(const std::vector<int>& ranks) {
  RanksEnd end;
  for (const int rank : ranks) {
    end.failures.push_back(
        {rank, FailureKind::kEnded, "rank " + std::to_string(rank) + " was killed", SIGKILL});
  }
  end.lost = ranks;
  return end;
}

RanksEnd failed(FailureKind kind) {
  return {.failures = {{1, kind, "a reason", 0}}, .lost = {}};
}

void expect_next(const NextAttempt& next, std::int64_t dp, std::int64_t places, const std::string& said) {
  ASSERT_TRUE(next.attempt) << next.said;
  EXPECT_EQ(next.attempt->config.mesh.dp, dp);
  EXPECT_EQ(next.attempt->places, places);
  EXPECT_EQ(next.said, said);
}

TEST(NextAttempt, ALostRankIsReplacedAsOftenAsAllowed) {
  const RestartPolicy policy{.most = 2};
  const NextAttempt first = next_attempt(killed({2}), attempt_with(4), policy);
  expect_next(first, 4, 4, "rank 2 was lost, continuing with dp=4 (4 ranks) as before");
  EXPECT_EQ(first.attempt->restarts, 1);
  EXPECT_EQ(first.attempt->config, attempt_with(4).config);
  const NextAttempt second = next_attempt(killed({0, 3}), *first.attempt, policy);
  expect_next(second, 4, 4, "ranks 0, 3 were lost, continuing with dp=4 (4 ranks) as before");
  EXPECT_EQ(second.attempt->restarts, 2);
  const NextAttempt third = next_attempt(killed({1}), *second.attempt, policy);
  EXPECT_FALSE(third.attempt);
  EXPECT_EQ(third.said, "--max-restarts 2: the run was restarted 2 times");
  EXPECT_FALSE(next_attempt(killed({1}), attempt_with(4), {.most = 0}).attempt);
}

TEST(NextAttempt, WhoGaveAReasonWouldGiveItAgain) {
  const RestartPolicy policy{.most = 5, .elastic = true};
  for (const FailureKind kind : {FailureKind::kUser, FailureKind::kRun, FailureKind::kUnexpected}) {
    const NextAttempt next = next_attempt(failed(kind), attempt_with(4), policy);
    EXPECT_FALSE(next.attempt);
    EXPECT_EQ(next.said, "");
  }
  // The disk was full before a rank was lost, and its end is no news.
  RanksEnd both = killed({2});
  both.failures.insert(both.failures.begin(), {0, FailureKind::kRun, "the disk is full", 0});
  EXPECT_FALSE(next_attempt(both, attempt_with(4), policy).attempt);
}

TEST(NextAttempt, TheUserIsObeyed) {
  RanksEnd end = killed({2});
  end.user_signal = true;
  const NextAttempt next = next_attempt(end, attempt_with(4), {.most = 5, .elastic = true});
  EXPECT_FALSE(next.attempt);
  EXPECT_EQ(next.said, "");
}

TEST(NextAttempt, AnElasticRunTakesTheLargestMeshThatIsLeft) {
  const RestartPolicy policy{.elastic = true};
  expect_next(next_attempt(killed({2}), attempt_with(4), policy), 3, 3,
              "rank 2 was lost, continuing with dp=3 instead of dp=4 (3 ranks)");
  expect_next(next_attempt(killed({1, 2, 3}), attempt_with(4), policy), 1, 1,
              "ranks 1, 2, 3 were lost, continuing with dp=1 instead of dp=4 (1 rank)");
  // 12 micro-batches go to 4 ranks, and not to 5. The fifth place stays free until it is needed.
  const NextAttempt spare = next_attempt(killed({0}), attempt_with(6), policy);
  expect_next(spare, 4, 5, "rank 0 was lost, continuing with dp=4 instead of dp=6 (4 ranks)");
  expect_next(next_attempt(killed({0}), *spare.attempt, policy), 4, 4,
              "rank 0 was lost, continuing with dp=4 as before, in a place that was free (4 ranks)");
  // A copy of the model is two ranks: of seven, six are of use.
  const NextAttempt pairs = next_attempt(killed({5}), attempt_with(4, 2), policy);
  expect_next(pairs, 3, 7, "rank 5 was lost, continuing with dp=3 instead of dp=4 (6 ranks)");
  EXPECT_EQ(pairs.attempt->config.mesh.tp, 2);
}

TEST(NextAttempt, AMeshThatCannotShrinkIsStartedAgainIfThatIsAllowed) {
  const std::string why = "a copy of the model takes 2 ranks (tp=2 x pp=1) and 1 is left";
  const NextAttempt alone = next_attempt(killed({1}), attempt_with(1, 2), {.elastic = true});
  EXPECT_FALSE(alone.attempt);
  EXPECT_EQ(alone.said,
            "--elastic: the mesh cannot shrink: " + why + "; --max-restarts N would start it again as it is");
  const RestartPolicy both{.most = 1, .elastic = true};
  const NextAttempt again = next_attempt(killed({1}), attempt_with(1, 2), both);
  expect_next(again, 1, 2,
              "rank 1 was lost, continuing with dp=1 (2 ranks) as before; the mesh cannot shrink: " + why);
  EXPECT_FALSE(next_attempt(killed({1}), *again.attempt, both).attempt);
}

// All of them left when the deadline had passed: who was late is there to stay.
TEST(NextAttempt, WhereNoRankIsGoneNoneIsMissing) {
  const RanksEnd late = failed(FailureKind::kLostOthers);
  expect_next(next_attempt(late, attempt_with(4), {.most = 1}), 4, 4, "continuing with dp=4 (4 ranks) as before");
  expect_next(next_attempt(late, attempt_with(4), {.most = 1, .elastic = true}), 4, 4,
              "continuing with dp=4 (4 ranks) as before; the mesh cannot shrink: no rank is gone for good");
  EXPECT_FALSE(next_attempt(late, attempt_with(4), {.elastic = true}).attempt);
}

std::string complaint(const RestartPolicy& policy, RanksAs ranks_as, const std::string& engine = "auto") {
  try {
    check_restartable(policy, ranks_as, engine);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Restartable, OnlyProcessesOfOurOwn) {
  EXPECT_EQ(complaint({.most = 3, .elastic = true}, RanksAs::kProcesses), "");
  EXPECT_EQ(complaint({}, RanksAs::kThreads), "");
  EXPECT_NE(complaint({.most = 3}, RanksAs::kThreads).find("--max-restarts 3 with --ranks-as threads"),
            std::string::npos);
  EXPECT_NE(complaint({.elastic = true}, RanksAs::kThreads).find("--elastic"), std::string::npos);
  EXPECT_NE(complaint({.most = 3}, RanksAs::kProcesses, "mpi").find("no MPI launcher"), std::string::npos);
}

struct Notes {
  std::array<std::atomic<pid_t>, 8> process{};
  std::atomic<int> arrived{0};
  std::atomic<int> attempts{0};
};

class Restarting : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "needs a process of one thread";
#endif
  }

  // A program that is restarted as `policy` says and whose ranks run `body`.
  Ended run(std::int64_t dp, const RestartPolicy& policy,
            const std::function<void(const Attempt&, World&)>& body) {
    ForkedProgram program([&] {
      run_restarting(attempt_with(dp).config, policy,
                     {.body = [&](const Attempt& attempt, World& world, int) { body(attempt, world); },
                      .get_ready =
                          [&] {
                            notes_->attempts++;
                            for (const auto& process : notes_->process) {
                              if (process != 0 && process_state(process) != 0) throw RunError("a rank is left");
                            }
                            return "step " + std::to_string(notes_->attempts);
                          }});
    });
    const int status = program.finish();
    return {status, program.output()};
  }

  Shared<Notes> notes_;
};

TEST_F(Restarting, EveryAttemptHasTheRanksOfItsMesh) {
  const Ended ended = run(4, {.elastic = true}, [&](const Attempt& attempt, World& world) {
    if (world.size() != attempt.config.mesh.dp) throw_run_error("{} ranks", world.size());
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    if (world.size() > 2 && world.rank() == world.size() - 1) raise(SIGKILL);
    everyone(world)->barrier();
  });
  EXPECT_EQ(ended.status, 0) << ended;
  for (const std::string line :
       {"Restart 1 from step 1: rank 3 was lost, continuing with dp=3 instead of dp=4 (3 ranks)\n",
        "Restart 2 from step 2: rank 2 was lost, continuing with dp=2 instead of dp=3 (2 ranks)\n"}) {
    EXPECT_NE(ended.output.find(line), std::string::npos) << ended;
  }
}

TEST_F(Restarting, ASingleRankIsAProcessToo) {
  const Ended ended = run(1, {.most = 1}, [&](const Attempt& attempt, World& world) {
    everyone(world)->barrier();
    if (attempt.restarts == 0) std::_Exit(3);
  });
  EXPECT_EQ(ended.status, 0) << ended;
  EXPECT_NE(
      ended.output.find("left with exit status 3 before its work was done. Restart 1 of 1 from step 1: rank "
                        "0 was lost, continuing with dp=1 (1 rank) as before\n"),
      std::string::npos)
      << ended;
}

TEST_F(Restarting, AnErrorOfARestartedRunIsOneOfARunThatHasBegun) {
  const Ended first = run(2, {.most = 3}, [](const Attempt&, World&) { throw_user_error("a mistake"); });
  EXPECT_EQ(first.status, 2);
  EXPECT_EQ(first.output, "meshtrain: a mistake\n");
  const Ended second = run(2, {.most = 3}, [](const Attempt& attempt, World& world) {
    const auto all = everyone(world);
    if (attempt.restarts > 0) throw_user_error("a mistake");
    if (world.rank() == 1) raise(SIGKILL);
    all->barrier();
  });
  EXPECT_EQ(second.status, 1);
  EXPECT_EQ(second.output.substr(second.output.rfind("meshtrain: ")), "meshtrain: a mistake\n");
}

TEST_F(Restarting, UsedUp) {
  const Ended ended = run(2, {.most = 2}, [](const Attempt&, World& world) {
    const auto all = everyone(world);
    if (world.rank() == 1) raise(SIGKILL);
    all->barrier();
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(notes_->attempts, 2);
  EXPECT_NE(ended.output.find("see dmesg. --max-restarts 2: the run was restarted 2 times\n"),
            std::string::npos)
      << ended;
}

// Whoever is not stopped has time to leave: rank 0 sees it gone before it is told to end itself.
TEST_F(Restarting, AStoppedRankIsTheOneThatIsLostAndIsKilledAtOnce) {
  const Ended ended = run(4, {.elastic = true}, [&](const Attempt& attempt, World& world) {
    if (attempt.restarts > 0) return;
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    const auto all = everyone(world);
    if (world.rank() == 1) raise(SIGSTOP);
    if (!wait_until([&] { return process_state(notes_->process[1]) == 'T'; })) return;
    sleep_ms(20);  // the system tells the supervisor a little later
    if (world.rank() == 0 && wait_until([&] { return is_gone(notes_->process[1]); })) notes_->arrived++;
    throw CommError("rank 1 had not arrived");
  });
  EXPECT_EQ(ended.status, 0) << ended;
  EXPECT_NE(ended.output.find("rank 1 was lost, continuing with dp=3"), std::string::npos) << ended;
  EXPECT_EQ(notes_->arrived, 1);
}

// One that is busy with something else, and neither communicates nor listens.
TEST_F(Restarting, ARankThatHangsIsTheOneThatIsLost) {
  const Ended ended = run(3, {.elastic = true}, [&](const Attempt& attempt, World& world) {
    if (attempt.restarts > 0) return;
    notes_->process[static_cast<std::size_t>(world.rank())] = getpid();
    std::signal(SIGTERM, SIG_IGN);
    while (world.rank() == 2) sleep_ms(1000);
    throw CommError("rank 2 had not arrived");
  });
  EXPECT_EQ(ended.status, 0) << ended;
  EXPECT_NE(
      ended.output.find("rank 2 had not arrived. Restart 1 from step 1: rank 2 was lost, continuing with dp=2"),
      std::string::npos)
      << ended;
}

TEST_F(Restarting, ASignalOfTheUserEndsIt) {
  ForkedProgram program([&] {
    run_restarting(attempt_with(2).config, {.most = 9},
                   {.body =
                        [&](const Attempt&, World&, int) {
                          notes_->arrived++;
                          for (;;) sleep_ms(1000);
                        },
                    .get_ready = [] { return std::string("nowhere"); }});
  });
  ASSERT_TRUE(wait_until([&] { return notes_->arrived == 2; }));
  kill(program.process(), SIGTERM);
  EXPECT_EQ(program.finish(), -SIGTERM);
  EXPECT_EQ(program.output(), "");
}

}  // namespace
}  // namespace meshtrain
