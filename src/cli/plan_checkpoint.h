// `meshtrain plan --checkpoint`: its options, and what is assumed where they say nothing.
#pragma once

#include <CLI/CLI.hpp>

#include "plan/checkpoint_plan.h"

namespace meshtrain::cli {

struct CheckpointArguments {
  bool asked = false;
  // 0: not said.
  double write_gbps = 0.0;
  double mtbf_hours = 0.0;
  double device_hours = 0.0;
  double step_seconds = 0.0;
};

// Returns --checkpoint, which the other options need.
CLI::Option* add_checkpoint_arguments(CLI::App& command, CheckpointArguments& arguments);

// The config must be filled in as for make_plan(). Measures, for some seconds, what was not given: the disk of
// checkpoint.dir and, where the config asks for async, a copy in memory. Throws RunError where the disk cannot
// be written.
CheckpointPlan plan_checkpoints(const Config& config, const CheckpointArguments& arguments);

}  // namespace meshtrain::cli
