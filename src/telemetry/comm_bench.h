// How fast collectives are, measured as nccl-tests does, with every result checked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "comm/world.h"

namespace meshtrain {

struct CommBenchOptions {
  // A barrier is none of them; an exchange is a ring of sends: each rank to the next.
  CommOp op = CommOp::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;
  std::int64_t min_bytes = 1 << 10;
  std::int64_t max_bytes = 1 << 26;
  std::int64_t factor = 2;  // from one size to the next
  int warmup = 5;
  int iterations = 20;
};

// Rates in 1e9 bytes a second.
struct CommTiming {
  double seconds = 0.0;
  double algorithm_bandwidth = 0.0;  // size / time
  double bus_bandwidth = 0.0;        // that times bus_factor
  std::int64_t wrong = 0;            // elements that differ from the expected value, on all ranks
};

struct CommBenchRow {
  std::int64_t bytes = 0;  // all-gather, reduce-scatter, all-to-all: of the pieces of all ranks
  std::int64_t count = 0;  // elements; there: of one piece
  std::optional<CommTiming> out_of_place;
  std::optional<CommTiming> in_place;  // all-to-all and exchange have none
};

// What a rank's link carries for each byte of the size, at the least: as nccl-tests publishes it.
double bus_factor(CommOp op, int ranks);

// The bytes of tensors that a rank needs.
std::int64_t comm_bench_bytes(const CommBenchOptions& options, int ranks);

// Called by every rank of the world. Sizes are rounded down to whole elements, and to one at the least. For
// each: untimed operations, then iterations of a barrier and the timed operation. An iteration takes as long as
// its slowest rank; the median of the iterations counts. A further, untimed operation is checked. `on_row` is
// called on every rank.
void run_comm_bench(World& world, const CommBenchOptions& options,
                    const std::function<void(const CommBenchRow&)>& on_row);

}  // namespace meshtrain
