// summary.json: what a run came to, for programs to read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_writer.h"
#include "comm/communicator.h"
#include "device/memory.h"
#include "train/assembly.h"
#include "train/axis_bytes.h"
#include "train/evaluation.h"

namespace meshtrain {

// What one rank needed and sent.
struct RankSummary {
  MemoryUse memory;  // the highest use of each category
  CommStats sent;
  AxisBytes by_axis;  // of training steps
};
// Of every rank, on every rank; a collective call. Nothing must be under way.
std::vector<RankSummary> summaries_of_ranks(Assembly& assembly);

struct RunSummary {
  std::int64_t steps = 0;
  std::int64_t updates = 0;
  std::int64_t rollbacks = 0;
  std::int64_t parameters = 0;
  std::optional<double> loss;      // of the last step; absent when none was left to do
  std::int64_t tokens = 0;         // trained on since step 1
  double seconds = 0.0;            // of this process
  double tokens_per_second = 0.0;  // likewise
  int threads = 0;                 // of the rank that leads
  double peak_tflops = 0.0;        // of all ranks; 0 or less: not known
  std::string engine;
  std::vector<RankSummary> ranks;
  std::string checkpoint;
  CheckpointStats saves;                 // of this process
  double stalled_seconds = 0.0;          // that training stood still for them
  std::optional<Evaluation> evaluation;  // the last
};

// JSON, with the peak resident bytes of this process and the convention of its FLOPs added.
std::string to_json_text(const RunSummary& summary);

}  // namespace meshtrain
