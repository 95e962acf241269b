// The parts of `bench comm`: what was asked for, and where the answer comes from.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "comm/sim/cost_model.h"
#include "launch/launch.h"
#include "telemetry/comm_bench.h"

namespace meshtrain::cli {

struct CommBench {
  std::string engine;        // shm, mpi, mpi-native, sim
  std::optional<int> ranks;  // of the command line
  RanksAs ranks_as = RanksAs::kProcesses;
  CommBenchOptions options;
  Link link;  // of sim
  std::string json;
};

// As nccl-tests writes them.
std::string bench_op_name(CommOp op);
std::string bench_type_name(DType dtype);

// Runs on the ranks of an engine; rank 0 prints. Throws RunError when an element was wrong.
void bench_comm_engine(const CommBench& bench);
// Computes instead, by the cost model.
void bench_comm_model(const CommBench& bench);

}  // namespace meshtrain::cli
