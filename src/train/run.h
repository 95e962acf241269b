// A whole training run: from a config to a run folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "comm/world.h"
#include "train/config.h"

namespace meshtrain {

struct RunOptions {
  bool resume = false;        // go on from the newest checkpoint; from the start when there is none
  std::string resume_from{};  // go on from this checkpoint instead of the newest
  std::int64_t stop_at_step =
      0;  // save and stop after this step, the schedule being that of train.steps; 0: off
  // Asked in every step; true on any rank: save and stop.
  std::function<bool()> stop_requested = [] { return false; };
  bool trace = false;  // leave trace.json
  // What output.dir holds is left by an attempt at this very run that was lost (train/run_attempts.h): it is
  // not moved out of the way, and to find nothing left to do is no mistake.
  bool restarted = false;
  // Told what this rank is about to do, or has just done, in a step: "micro-step" before each micro-batch but
  // the first, "collective" before gradients are combined, and the phases of a WriteHook with the step being
  // saved. Any thread; null: nobody listens.
  std::function<void(std::string_view phase, std::int64_t step)> at_phase = {};
};

enum class RunOutcome : std::uint8_t {
  kDone,         // all steps, or those up to stop_at_step
  kInterrupted,  // stopped before, because a rank asked for it; what was done is saved
};

// Leaves output.dir with config.toml, metrics.jsonl, checkpoints/, summary.json and, if asked for, trace.json
// (after a failure with the events of the rank that leads only). A folder that holds
// another run is renamed out of the way first, unless this run goes on from it.
// A collective call of the world's ranks, one of which writes. Throws UserError before the first step, RunError
// after it.
RunOutcome run_training(const Config& config, const RunOptions& options, World& world);

}  // namespace meshtrain
