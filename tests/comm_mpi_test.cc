// The engine `mpi` under its launcher: the conformance suite, and what every rank says when something goes
// wrong.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "comm/engines.h"
#include "program.h"

namespace meshtrain {
namespace {

class CommMpi : public ProgramTest {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI library";
    mpirun_ = find_program("mpirun");
    if (mpirun_.empty()) GTEST_SKIP() << "mpirun is not in PATH (Debian: openmpi-bin)";
    prepare_mpirun(dir_);
    // What the library itself does is not the matter here.
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
    setenv("TSAN_OPTIONS", "ignore_noninstrumented_modules=1", 0);
  }

  Outcome mpi(int ranks, const Arguments& command) const {
    return Process(mpirun_, Arguments{"-n", std::to_string(ranks), "--oversubscribe"} + command, dir_).finish();
  }

  // Three ranks, of which rank 1 is the odd one; `ranks` catch an error, and none of these ends before all
  // have.
  Outcome faulty(const std::string& what, const std::vector<int>& ranks, int deadline_ms = 60'000) const {
    for (const char* file : {"rank-0", "rank-1", "rank-2"}) fs::remove(path(file));
    Arguments words = {MESHTRAIN_COMM_MPI_FAULTS, what, std::to_string(deadline_ms)};
    for (const int rank : ranks) words.push_back(std::to_string(rank));
    Outcome outcome = mpi(3, words);
    EXPECT_NE(outcome.status, 0) << what;
    return outcome;
  }

  void expect_error(const std::string& what, const std::vector<int>& ranks,
                    std::initializer_list<std::string_view> parts, int deadline_ms = 60'000) const {
    const Outcome outcome = faulty(what, ranks, deadline_ms);
    for (const int rank : ranks) {
      const std::string file = "rank-" + std::to_string(rank);
      if (exists(file)) {
        expect_contains(read(file), parts);
      } else {
        ADD_FAILURE() << "rank " << rank << " caught nothing: " << outcome;
      }
    }
  }

  std::string mpirun_;
};

TEST_F(CommMpi, ConformsWithAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    const Outcome outcome = mpi(ranks, {MESHTRAIN_COMM_CONFORMANCE, ranks == 3 ? "full" : "quick"});
    EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome;
  }
}

TEST_F(CommMpi, CallsThatDifferShowBothOnEveryRank) {
  struct Case {
    std::string name;
    std::string most;
    std::string odd;
  };
  for (const Case& c :
       {Case{"barrier", "ranks 0, 2: barrier", "rank 1: all-reduce sum of 5 fp32"},
        Case{"broadcast", "ranks 0, 2: broadcast of 8 fp32 from rank 0",
             "rank 1: broadcast of 8 fp32 from rank 2"},
        Case{"all-reduce", "ranks 0, 2: all-reduce sum of 300000 fp32",
             "rank 1: all-reduce max of 300000 fp32"},
        Case{"all-reduce-size", "ranks 0, 2: all-reduce sum of 3 fp32",
             "rank 1: all-reduce sum of 300000 fp32"},
        Case{"reduce-scatter", "ranks 0, 2: reduce-scatter sum of 4 fp32",
             "rank 1: reduce-scatter sum of 4 bf16"},
        Case{"all-gather", "ranks 0, 2: all-gather of 8 fp32", "rank 1: all-gather of 7 fp32"},
        Case{"afterwards", "ranks 0, 2: all-reduce sum of 5 fp32", "rank 1: all-reduce sum of 4 fp32"}}) {
    SCOPED_TRACE(c.name);
    expect_error(c.name, {0, 1, 2}, {"\"all\"", "number 1", c.most, c.odd});
  }
}

// Each against one of the others.
TEST_F(CommMpi, AnyCollectiveIsToldFromAnother) {
  for (const auto& [most, odd] :
       std::vector<std::pair<std::string, std::string>>{{"barrier", "exchange"},
                                                        {"broadcast", "barrier"},
                                                        {"all-reduce", "broadcast"},
                                                        {"reduce-scatter", "all-reduce"},
                                                        {"all-gather", "reduce-scatter"},
                                                        {"all-to-all", "all-gather"},
                                                        {"exchange", "all-to-all"}}) {
    SCOPED_TRACE(most + ' ' + odd);
    expect_error(most + '/' + odd, {0, 1, 2}, {"\"all\"", most, odd});
  }
}

// What the library keeps of a run lies where no other run removes it.
TEST_F(CommMpi, SessionsOfTestsAreApart) {
  const Outcome outcome = mpi(1, {"/usr/bin/env"});
  EXPECT_EQ(outcome.status, 0) << outcome;
  const std::string key = "PMIX_SERVER_TMPDIR=";  // of Open MPI
  if (outcome.out.find(key) != std::string::npos) expect_contains(outcome.out, {key + dir_.string()});
}

TEST_F(CommMpi, MessagesThatDifferShowBothEnds) {
  expect_error("all-to-all", {1, 2},
               {"all-to-all of fp32", "\"all\"", "rank 1 sends 1 elements to rank 2, which expects 2"});
  expect_error("exchange", {0, 1, 2},
               {"\"all\"", "exchange of 100 fp32, sending", "exchange of 99 fp32, receiving"});
  expect_error("exchange-collective", {0, 1, 2}, {"\"all\"", "exchange of 3 fp32", "barrier"});
}

TEST_F(CommMpi, ADeadlineNamesTheRankThatStopped) {
  expect_error("stop", {0, 2},
               {"all-reduce sum of 12 fp32", "operation 1 of group \"all\" (ranks 0, 1, 2)",
                "not arrived: rank 1", "deadline of 3 s"},
               3000);
}

TEST_F(CommMpi, ADeadlineNamesTheRankThatAGroupLacks) {
  expect_error("group", {0, 2},
               {"making group \"late\" of ranks 0, 1, 2: not arrived: rank 1", "deadline of 3 s"}, 3000);
}

TEST_F(CommMpi, AKilledRankEndsTheRun) {
  const Outcome outcome = faulty("kill", {});  // long before the deadline
  expect_contains(outcome.err, {"rank 1", "signal 9"});
  for (const char* file : {"rank-0", "rank-2"}) EXPECT_FALSE(exists(file)) << read(file);
}

TEST_F(CommMpi, ARankThatExitsEndsTheRunWithItsStatus) {
  EXPECT_EQ(faulty("exit", {}).status, 7);
}

TEST_F(CommMpi, ARankThatLeftIsNamed) {
  expect_error("leave", {0, 2}, {"all-reduce sum of 12 fp32", "rank 1 left the run"});
}

TEST_F(CommMpi, AbortReachesEveryRank) {
  expect_error("abort", {0, 1, 2}, {"the disk is full"});
}

TEST_F(CommMpi, AnotherNumberOfRanksIsAMistakeOfTheUser) {
  const Outcome outcome = faulty("expected", {});
  EXPECT_EQ(outcome.status, 2);
  expect_contains(outcome.err, {"5 ranks were asked for, and MPI has 3", "mpirun -n 5"});
}

}  // namespace
}  // namespace meshtrain
