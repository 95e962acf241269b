// Ranks that communicate, however they were started.
#include "launch/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "comm/engines.h"
#include "launch/launch_testing.h"

namespace meshtrain {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool kForks = false;  // ThreadSanitizer has a thread of its own
#else
constexpr bool kForks = true;
#endif

// Throws unless the ranks can sum their numbers.
void sum_ranks(World& world) {
  std::int32_t value = world.rank() + 1;
  const Tensor tensor(&value, DType::kI32, {1});
  everyone(world)->all_reduce(tensor, tensor, ReduceOp::kSum);
  if (value != world.size() * (world.size() + 1) / 2) throw_run_error("the sum of ranks is {}", value);
}

struct Notes {
  std::array<std::atomic<int>, 8> of_rank{};
  std::atomic<int> done{0};
};

TEST(LocalRanks, Communicate) {
  for (const RanksAs as : {RanksAs::kThreads, RanksAs::kProcesses}) {
    if (as == RanksAs::kProcesses && !kForks) continue;
    for (const int ranks : {1, 2, 5}) {
      Shared<Notes> notes;
      ForkedProgram program([&] {
        run_local_ranks({.ranks = ranks, .ranks_as = as}, [&](World& world, int) {
          sum_ranks(world);
          notes->done++;
        });
      });
      EXPECT_EQ(program.finish(), 0) << program.output();
      EXPECT_EQ(notes->done, ranks);
    }
  }
}

TEST(LocalRanks, OthersLeaveTheirOperationsWhenOneFails) {
  for (const RanksAs as : {RanksAs::kThreads, RanksAs::kProcesses}) {
    if (as == RanksAs::kProcesses && !kForks) continue;
    Shared<Notes> notes;
    ForkedProgram program([&] {
      run_local_ranks({.ranks = 4, .ranks_as = as}, [&](World& world, int) {
        const std::unique_ptr<Communicator> all = everyone(world);
        if (world.rank() == 2) throw_run_error("disk full");
        try {
          all->barrier();
        } catch (const CommError&) {
          notes->done++;
          throw;
        }
      });
    });
    EXPECT_EQ(program.finish(), 1);
    EXPECT_EQ(program.output(), "meshtrain: rank 2: disk full\n");
    EXPECT_EQ(notes->done, 3);
  }
}

TEST(LocalRanks, AKilledRankIsTheCauseNotThoseThatMissIt) {
  if (!kForks) GTEST_SKIP();
  Shared<Notes> notes;
  const Ended ended = run_processes(3, [&](World& world, int) {
    const std::unique_ptr<Communicator> all = everyone(world);
    if (world.rank() == 1) kill(getpid(), SIGKILL);
    try {
      all->barrier();
    } catch (const CommError&) {
      notes->done++;
      throw;
    }
  });
  EXPECT_EQ(ended.status, 1);
  EXPECT_EQ(ended.output.find("meshtrain: rank 1 (process "), 0U) << ended;
  EXPECT_EQ(notes->done, 2);
}

using Variables = std::vector<std::pair<std::string, std::string>>;

void set_variables(const Variables& variables) {
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}
void forget_launchers() {
  unsetenv("OMP_NUM_THREADS");
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID"}) {
    unsetenv(name);
  }
}

Variables torchrun(int rank, int size, const std::string& port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(size)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(size)},
          {"MASTER_ADDR", "localhost"},         {"MASTER_PORT", port},
          {"TORCHELASTIC_RUN_ID", "none"},      {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

// What `meshtrain` does in each process that torchrun starts.
std::vector<std::unique_ptr<ForkedProgram>> start_under_torchrun(int started, int size,
                                                                 const WorldOptions& options,
                                                                 const RankBody& body) {
  const std::string port = std::to_string(getpid());
  std::vector<std::unique_ptr<ForkedProgram>> programs;
  for (int rank = 0; rank < started; ++rank) {
    programs.push_back(std::make_unique<ForkedProgram>([&, rank] {
      forget_launchers();
      set_variables(torchrun(rank, size, port));
      run_ranks(std::nullopt, RanksAs::kProcesses, "auto", options, body);
    }));
  }
  return programs;
}

TEST(RunRanks, RanksOfTorchrunMeetAndShareTheCores) {
  const std::vector<int> cores = available_cores();
  const int size = 3;
  Shared<Notes> notes;
  const auto programs = start_under_torchrun(size, size, {}, [&](World& world, int threads) {
    if (world.engine() != "shm") throw_run_error("engine {}", world.engine());
    sum_ranks(world);
    notes->of_rank[static_cast<std::size_t>(world.rank())] = static_cast<int>(available_cores().size());
    if (threads < 1) throw_run_error("{} threads", threads);
    notes->done++;
  });
  for (const auto& program : programs) EXPECT_EQ(program->finish(), 0) << program->output();
  EXPECT_EQ(notes->done, size);
  const bool bound = static_cast<int>(cores.size()) >= size;
  const int sum = notes->of_rank[0] + notes->of_rank[1] + notes->of_rank[2];
  EXPECT_EQ(sum, static_cast<int>(cores.size()) * (bound ? 1 : size));
}

TEST(RunRanks, ARankOfTorchrunThatFailsTellsTheOthersWhy) {
  const auto programs = start_under_torchrun(2, 2, {}, [](World& world, int) {
    const std::unique_ptr<Communicator> all = everyone(world);
    if (world.rank() == 1) throw_user_error("no such file");
    all->barrier();
  });
  EXPECT_EQ(programs[1]->finish(), 2);
  EXPECT_EQ(programs[1]->output(), "meshtrain: no such file\n");
  EXPECT_EQ(programs[0]->finish(), 1);
  EXPECT_NE(programs[0]->output().find("rank 1 failed: no such file"), std::string::npos)
      << programs[0]->output();
}

TEST(RunRanks, ARankOfTorchrunThatNeverComesIsNamed) {
  const auto programs =
      start_under_torchrun(2, 3, {.deadline = std::chrono::milliseconds(500)}, [](World&, int) {});
  for (const auto& program : programs) EXPECT_EQ(program->finish(), 1);
  // Rank 0 knows who is missing; the others may give up before they hear of it.
  EXPECT_NE(programs[0]->output().find("2"), std::string::npos) << programs[0]->output();
  EXPECT_NE(programs[1]->output().find("rendezvous"), std::string::npos) << programs[1]->output();
}

// A rank that mpirun started runs this test alone, with the engine that the variable names.
constexpr const char* kEngineVariable = "MESHTRAIN_TEST_ENGINE";

TEST(RunRanks, DISABLED_AsOneOfThreeRanksOfMpirun) {
  const char* const engine = std::getenv(kEngineVariable);
  ASSERT_NE(engine, nullptr) << "run by another test";
  const int cores = static_cast<int>(available_cores().size());
  bool ran = false;
  run_ranks(std::nullopt, RanksAs::kProcesses, engine, {}, [&](World& world, int threads) {
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.local_size(), 3);
    EXPECT_EQ(world.engine(), engine == std::string("shm") ? "shm" : "mpi");
    // They share the cores of the host.
    const int share = cores / 3 + (world.rank() < cores % 3 ? 1 : 0);
    EXPECT_EQ(threads, cores < 3 ? 1 : share);
    sum_ranks(world);
    ran = true;
  });
  EXPECT_TRUE(ran);
}

TEST(RunRanks, RanksOfMpirunMeetOverEitherEngine) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI library";
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not in PATH";
  const std::string program_path = std::filesystem::read_symlink("/proc/self/exe");
  for (const char* engine : {"auto", "mpi", "shm"}) {
    ForkedProgram program([&] {
      forget_launchers();
      set_variables({{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                     {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                     {"ASAN_OPTIONS", "detect_leaks=0"},  // of the library
                     {kEngineVariable, engine}});
      execlp("mpirun", "mpirun", "-n", "3", "--oversubscribe", "--bind-to", "none", program_path.c_str(),
             "--gtest_also_run_disabled_tests", "--gtest_filter=RunRanks.DISABLED_AsOneOfThreeRanksOfMpirun",
             nullptr);
      throw_run_error("mpirun does not start");
    });
    EXPECT_EQ(program.finish(), 0) << program.output();
  }
}

TEST(RunRanks, ALauncherOfOneProcessLeavesLocalRanksAlone) {
  if (!kForks) GTEST_SKIP();
  const std::vector<Variables> launchers = {
      {},
      torchrun(0, 1, "1"),
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "8"}}};
  for (const Variables& variables : launchers) {
    for (const std::optional<int> asked : {std::optional<int>(), std::optional<int>(3)}) {
      Shared<Notes> notes;
      ForkedProgram program([&] {
        forget_launchers();
        set_variables(variables);
        run_ranks(asked, RanksAs::kProcesses, "auto", {}, [&](World& world, int) {
          sum_ranks(world);
          notes->done++;
        });
      });
      EXPECT_EQ(program.finish(), 0) << program.output();
      EXPECT_EQ(notes->done, asked.value_or(1));
    }
  }
}

TEST(RunRanks, WhatContradictsTheLauncherIsRefused) {
  struct Case {
    Variables variables;
    std::optional<int> asked;
    RanksAs as;
    std::string engine;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {torchrun(0, 2, "1"), 4, RanksAs::kProcesses, "auto", {"--ranks 4", "torchrun started 2"}},
      {torchrun(0, 2, "1"), std::nullopt, RanksAs::kThreads, "auto", {"--ranks-as threads", "torchrun"}},
      {torchrun(0, 2, "1"), std::nullopt, RanksAs::kProcesses, "mpi", {"mesh.engine = \"mpi\"", "mpirun -n 2"}},
      {{}, 4, RanksAs::kProcesses, "mpi", {"mesh.engine = \"mpi\"", "no MPI launcher", "mpirun -n 4"}},
      {{}, 1, RanksAs::kProcesses, "ncc", {"\"ncc\"", "auto, shm, mpi"}},
  };
  for (const Case& c : cases) {
    ForkedProgram program([&] {
      forget_launchers();
      set_variables(c.variables);
      run_ranks(c.asked, c.as, c.engine, {}, [](World&, int) { throw_run_error("ran"); });
    });
    EXPECT_EQ(program.finish(), 2);
    for (const std::string& part : c.parts) {
      EXPECT_NE(program.output().find(part), std::string::npos) << part << " in: " << program.output();
    }
  }
}

}  // namespace
}  // namespace meshtrain
