// The engine `mpi` under its launcher: the conformance suite, and what every rank says when something goes
// wrong.
#include <gtest/gtest.h>

#include <chrono>
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
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    // What the library itself does is not the matter here.
    setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
    setenv("TSAN_OPTIONS", "ignore_noninstrumented_modules=1", 0);
  }

  Outcome mpi(int ranks, const Arguments& command) const {
    return Process(mpirun_, Arguments{"-n", std::to_string(ranks), "--oversubscribe"} + command, dir_).finish();
  }

  // Three ranks, of which rank 1 is the odd one.
  Outcome faulty(const std::string& what, int deadline_ms = 60'000) const {
    for (const char* file : {"rank-0", "rank-1", "rank-2"}) fs::remove(path(file));
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = mpi(3, {MESHTRAIN_COMM_MPI_FAULTS, what, std::to_string(deadline_ms)});
    EXPECT_NE(outcome.status, 0) << what;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50)) << what;
    return outcome;
  }

  void expect_error(const std::vector<int>& ranks, std::initializer_list<std::string_view> parts) const {
    for (const int rank : ranks) {
      const std::string file = "rank-" + std::to_string(rank);
      if (exists(file)) {
        expect_contains(read(file), parts);
      } else {
        ADD_FAILURE() << "rank " << rank << " caught nothing";
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
    faulty(c.name);
    expect_error({0, 1, 2}, {"\"all\"", "number 1", c.most, c.odd});
  }
}

TEST_F(CommMpi, MessagesThatDifferShowBothEnds) {
  faulty("all-to-all");
  expect_error({1, 2}, {"all-to-all of fp32", "\"all\"", "rank 1 sends 1 elements to rank 2, which expects 2"});
  faulty("exchange");
  expect_error({0, 1, 2}, {"\"all\"", "exchange of 100 fp32, sending", "exchange of 99 fp32, receiving"});
  faulty("exchange-collective");
  expect_error({0, 1, 2}, {"\"all\"", "exchange of 3 fp32", "barrier"});
}

TEST_F(CommMpi, ADeadlineNamesTheRankThatStopped) {
  faulty("stop", 3000);
  expect_error({0, 2}, {"all-reduce sum of 12 fp32", "operation 1 of group \"all\" (ranks 0, 1, 2)",
                        "not arrived: rank 1", "deadline of 3 s"});
}

TEST_F(CommMpi, ADeadlineNamesTheRankThatAGroupLacks) {
  faulty("group", 3000);
  expect_error({0, 2}, {"making group \"late\" of ranks 0, 1, 2: not arrived: rank 1", "deadline of 3 s"});
}

TEST_F(CommMpi, AKilledRankEndsTheRun) {
  const Outcome outcome = faulty("kill");  // long before the deadline
  expect_contains(outcome.err, {"rank 1", "signal 9"});
}

TEST_F(CommMpi, ARankThatExitsEndsTheRunWithItsStatus) {
  EXPECT_EQ(faulty("exit").status, 7);
}

TEST_F(CommMpi, ARankThatLeftIsNamed) {
  faulty("leave");
  expect_error({0, 2}, {"all-reduce sum of 12 fp32", "rank 1 left the run"});
}

TEST_F(CommMpi, AbortReachesEveryRank) {
  faulty("abort");
  expect_error({0, 1, 2}, {"the disk is full"});
}

TEST_F(CommMpi, AnotherNumberOfRanksIsAMistakeOfTheUser) {
  const Outcome outcome = faulty("expected");
  EXPECT_EQ(outcome.status, 2);
  expect_contains(outcome.err, {"5 ranks were asked for, and MPI has 3", "mpirun -n 5"});
}

}  // namespace
}  // namespace meshtrain
