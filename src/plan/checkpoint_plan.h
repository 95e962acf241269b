// What saving costs a run: size, time, how often (checkpoint/interval.h), and what a failure loses.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/config.h"

namespace meshtrain {

// A figure, and where it is from, for people: "given", "measured: …".
struct Assumed {
  double value = 0.0;
  std::string source;
};

struct CheckpointAssumptions {
  Assumed write_bytes_per_second;    // of all ranks together
  Assumed copy_bytes_per_second;     // in the memory of a rank; with checkpoint.async only
  Assumed seconds_between_failures;  // of the whole run
  Assumed step_seconds;
};

// Bytes of tensors; the headers of the files are a little more.
struct CheckpointSize {
  std::int64_t all = 0;
  std::int64_t of_rank = 0;  // the most that one rank writes
  std::int64_t stage = 0;    // of the pipeline, whose ranks these are
};
// fp32 masters and optimizer states, each parameter once: ranks of a stage share out what the stage trains,
// whatever the ZeRO stage. The mesh must be filled in and the vocabulary known.
CheckpointSize checkpoint_size(const Config& config);

struct CheckpointPlan {
  CheckpointSize size;
  CheckpointAssumptions assumed;
  double write_seconds = 0.0;  // from the beginning of a save until it is committed
  double stall_seconds = 0.0;  // that it holds training: all of it, or with checkpoint.async the copy
  // Young's, but not less than a step, nor with checkpoint.async than write_seconds, since one is written at a
  // time.
  double interval_seconds = 0.0;
  std::int64_t interval_steps = 0;
  double waste = 0.0;         // of all time: saves, and work done again after failures
  double lost_seconds = 0.0;  // work done again after a failure, on average
};
// Without copy_bytes_per_second the config must not ask for async.
CheckpointPlan plan_checkpoints(const Config& config, const CheckpointAssumptions& assumed);
// Of another interval than the plan's.
double waste_of_steps(const CheckpointPlan& plan, std::int64_t steps);

nlohmann::json to_json(const CheckpointPlan& plan, const Config& config);
std::string to_text(const CheckpointPlan& plan, const Config& config);

}  // namespace meshtrain
