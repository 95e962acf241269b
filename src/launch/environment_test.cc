#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/launch.h"

namespace meshtrain {
namespace {

using Set = std::map<std::string, std::string>;

std::optional<WorkerEnvironment> environment_of(const Set& set) {
  return worker_environment([&](const char* name) -> const char* {
    const auto found = set.find(name);
    return found != set.end() ? found->second.c_str() : nullptr;
  });
}

Set operator+(Set first, const Set& second) {
  for (const auto& [name, value] : second) first[name] = value;
  return first;
}
Set without(Set set, const std::string& name) {
  set.erase(name);
  return set;
}

// What each launcher sets for rank 5 of 8 on the second of two hosts.
const Set kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"GROUP_RANK", "1"},
                       {"MASTER_ADDR", "node0"},
                       {"MASTER_PORT", "29400"},
                       {"TORCHELASTIC_RUN_ID", "none"},
                       {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Set kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},       {"OMPI_COMM_WORLD_SIZE", "8"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"PMIX_NAMESPACE", "2468741121"},    {"PMIX_RANK", "5"}};
const Set kHydra = {
    {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"PMI_FD", "7"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
const Set kSrun = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},
                   {"SLURM_PROCID", "5"},         {"SLURM_LOCALID", "1"},
                   {"SLURM_NODEID", "1"},         {"SLURM_NTASKS", "8"},
                   {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
// A batch script of the same job: one process.
const Set kSbatch = {
    {"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"},  {"SLURM_NPROCS", "8"}, {"SLURM_TASKS_PER_NODE", "4(x2)"},
    {"SLURM_PROCID", "0"},  {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}};

TEST(WorkerEnvironment, OfEachLauncher) {
  const std::vector<std::pair<std::string, Set>> cases = {
      {"torchrun", kTorchrun},
      {"mpirun", kOpenMpi},
      {"mpirun", kHydra},
      {"srun", kSrun},
      {"srun", kSrun + Set{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}},  // --mpi=pmi2
      // A launcher inside another.
      {"mpirun", kOpenMpi + Set{{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"mpirun", kHydra + Set{{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"torchrun",
       kTorchrun + Set{{"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}},
      {"torchrun", kTorchrun + Set{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}},
      // Names that scripts set for PyTorch's sake.
      {"mpirun",
       kOpenMpi + Set{{"RANK", "0"}, {"WORLD_SIZE", "9"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}},
      {"srun", kSrun + Set{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}},
      {"torchrun", without(kTorchrun, "TORCHELASTIC_RUN_ID")},
      {"mpirun", kOpenMpi + kSbatch},
      {"torchrun", kTorchrun + kSbatch},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::optional<WorkerEnvironment> environment = environment_of(cases[i].second);
    ASSERT_TRUE(environment) << i;
    EXPECT_EQ(environment->launcher, cases[i].first) << i;
    EXPECT_EQ(environment->rank, 5) << i;
    EXPECT_EQ(environment->size, 8) << i;
    EXPECT_EQ(environment->local_rank, 1) << i;
    EXPECT_EQ(environment->local_size, 4) << i;
    EXPECT_LT(environment->rendezvous.size(), 100U) << i;  // names of abstract sockets are short
  }
}

TEST(WorkerEnvironment, NobodyStartedThisProcess) {
  EXPECT_FALSE(environment_of({}));
  EXPECT_FALSE(environment_of(kSbatch));
  EXPECT_FALSE(environment_of({{"RANK", "3"}}));
  EXPECT_FALSE(environment_of({{"MASTER_PORT", "3"}, {"LOCAL_RANK", "8"}}));
  // The steps that Slurm makes for a batch script and for an interactive shell.
  for (const char* step : {"4294967294", "4294967290"}) {
    EXPECT_FALSE(environment_of(kSbatch + Set{{"SLURM_STEP_ID", step}, {"SLURM_STEP_NUM_TASKS", "8"}}));
  }
}

// One process that expects nobody.
TEST(WorkerEnvironment, AWorldOfOneIsNoLaunchersWork) {
  EXPECT_FALSE(
      environment_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "1"}}));
  EXPECT_FALSE(environment_of({{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "1"}}));
}

TEST(WorkerEnvironment, WhatALauncherDoesNotSayIsUnknown) {
  const auto mpi = environment_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->local_rank, -1);
  EXPECT_EQ(mpi->local_size, -1);
  EXPECT_EQ(environment_of(without(kSrun, "SLURM_NODEID"))->local_size, -1);
}

TEST(WorkerEnvironment, SlurmCountsTasksOfEachNode) {
  const std::vector<std::pair<std::string, std::vector<int>>> cases = {{"4(x2),3", {4, 4, 3, -1}},
                                                                       {"1", {1, -1}},
                                                                       {"16,2(x3),1", {16, 2, 2, 2, 1, -1}},
                                                                       {"x", {-1}},
                                                                       {"", {-1}}};
  for (const auto& [list, expected] : cases) {
    for (std::size_t node = 0; node < expected.size(); ++node) {
      const auto environment = environment_of(
          kSrun + Set{{"SLURM_STEP_TASKS_PER_NODE", list}, {"SLURM_NODEID", std::to_string(node)}});
      EXPECT_EQ(environment->local_size, expected[node]) << list << " " << node;
    }
  }
}

TEST(WorkerEnvironment, JobsMeetUnderNamesOfTheirOwn) {
  const auto name = [](const Set& set) { return environment_of(set)->rendezvous; };
  EXPECT_EQ(name(kTorchrun), name(kTorchrun + Set{{"RANK", "6"}, {"LOCAL_RANK", "2"}}));
  EXPECT_NE(name(kTorchrun), name(kTorchrun + Set{{"MASTER_PORT", "29401"}}));
  EXPECT_NE(name(kTorchrun), name(kTorchrun + Set{{"TORCHELASTIC_RUN_ID", "other"}}));
  EXPECT_NE(name(kTorchrun), name(kTorchrun + Set{{"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_EQ(name(kSrun), name(kSrun + Set{{"SLURM_PROCID", "6"}}));
  EXPECT_NE(name(kSrun), name(kSrun + Set{{"SLURM_STEP_ID", "1"}}));
  EXPECT_NE(name(kOpenMpi), name(kOpenMpi + Set{{"PMIX_NAMESPACE", "2468741122"}}));
  EXPECT_EQ(name(kHydra), name(kHydra + Set{{"PMI_RANK", "6"}}));
}

TEST(WorkerEnvironment, MistakesNameTheVariableAndItsValue) {
  struct Case {
    Set set;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {kTorchrun + Set{{"RANK", "five"}}, {"RANK=\"five\"", "torchrun", "whole number from 0"}},
      {kTorchrun + Set{{"RANK", ""}}, {"RANK=\"\""}},
      {kTorchrun + Set{{"RANK", "-1"}}, {"RANK=\"-1\""}},
      {kTorchrun + Set{{"RANK", "8"}}, {"RANK=8", "WORLD_SIZE=8", "contradicts"}},
      {kTorchrun + Set{{"LOCAL_RANK", "4"}}, {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"}},
      {kTorchrun + Set{{"LOCAL_WORLD_SIZE", "9"}}, {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"}},
      {kTorchrun + Set{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE=\"0\"", "from 1"}},
      {kTorchrun + Set{{"WORLD_SIZE", "99999999999"}}, {"WORLD_SIZE=\"99999999999\""}},
      {kTorchrun + Set{{"MASTER_PORT", "http"}}, {"MASTER_PORT=\"http\""}},
      {without(kTorchrun, "WORLD_SIZE"),
       {"WORLD_SIZE is not set", "unset what another run left behind: TORCHELASTIC_RUN_ID, RANK"}},
      {without(kTorchrun, "LOCAL_WORLD_SIZE"), {"LOCAL_WORLD_SIZE is not set"}},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), {"OMPI_COMM_WORLD_SIZE is not set", "mpirun"}},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}},
       {"left behind: OMPI_COMM_WORLD_SIZE.", "OMPI_COMM_WORLD_RANK is not set"}},
      {{{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_RANK", "0"}},
       {"left behind: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_RANK."}},
      // Pods of a PyTorchJob.
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}},
       {"RANK=1 and WORLD_SIZE=2", "one of several ranks", "mpirun", "unset RANK and WORLD_SIZE"}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "3"}}, {"RANK=0 and WORLD_SIZE=3"}},
      {without(kTorchrun, "TORCHELASTIC_RUN_ID") + Set{{"WORLD_SIZE", "two"}}, {"WORLD_SIZE=\"two\""}},
      {{{"RANK", "0"}, {"WORLD_SIZE", "two"}}, {"WORLD_SIZE=\"two\""}},
      {kOpenMpi + Set{{"OMPI_COMM_WORLD_RANK", "5 "}}, {"OMPI_COMM_WORLD_RANK=\"5 \""}},
      {kHydra + Set{{"PMI_SIZE", "4"}}, {"PMI_RANK=5", "PMI_SIZE=4"}},
      {kSrun + Set{{"SLURM_STEP_NUM_TASKS", "5"}}, {"SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=5", "srun"}},
      {kSrun + Set{{"SLURM_STEP_ID", "batch"}}, {"SLURM_STEP_ID=\"batch\""}},
  };
  for (const Case& c : cases) {
    try {
      environment_of(c.set);
      ADD_FAILURE() << "accepted: " << c.parts.front();
    } catch (const UserError& error) {
      for (const std::string& part : c.parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in: " << error.what();
      }
    }
  }
}

std::string refusal(const WorkerEnvironment& environment, const std::string& engine) {
  try {
    join_world(environment, engine, {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(JoinWorld, AnEngineThatCannotConnectTheRanksIsRefused) {
  const WorkerEnvironment torchrun = *environment_of(kTorchrun);
  const WorkerEnvironment mpirun = *environment_of(kOpenMpi);
  expect_parts(refusal(torchrun, "auto"), {"started 8 ranks, 4 of them on this host", "mpirun -n 8", "srun"});
  expect_parts(refusal(torchrun, "mpi"), {"mesh.engine = \"mpi\"", "torchrun", "mpirun -n 8"});
  expect_parts(refusal(mpirun, "shm"), {"mesh.engine = \"shm\"", "8 ranks, 4 of them on this host"});
  WorkerEnvironment unknown = mpirun;
  unknown.local_size = -1;
  expect_parts(refusal(unknown, "shm"), {"does not say how many"});
  expect_parts(refusal(mpirun, "smh"), {"\"smh\"", "nearest is \"shm\"", "auto, shm, mpi"});
}

}  // namespace
}  // namespace meshtrain
