// What a run puts into its checkpoints, and how it goes on from one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "optim/loss_scale.h"
#include "train/assembly.h"
#include "train/bad_steps.h"
#include "train/whole_state.h"

namespace meshtrain {

// Where a run stands between two steps.
struct RunPosition {
  std::int64_t step = 0;      // steps done, skipped ones included
  std::int64_t updates = 0;   // updates applied
  std::int64_t position = 0;  // samples trained on: the next one is the first after these
  BadStepRecord bad_steps = {};
  friend bool operator==(const RunPosition&, const RunPosition&) = default;
};

// Tensors point into `state`, of the rank that leads.
CheckpointContents checkpoint_contents(const Assembly& assembly, const WholeState& state,
                                       const RunPosition& position);

// Fills this rank's masters and optimizer state, all weights and the loss scale; the mesh may be another than
// that which wrote it. A collective call. Throws UserError when the checkpoint is of another model or
// optimizer.
RunPosition restore(Assembly& assembly, const Checkpoint& checkpoint);

// The config that the checkpoint's run was started with, changed by overrides "section.key=value".
Config config_of(const Checkpoint& checkpoint, const std::vector<std::string>& overrides = {});

// Weights only, rounded to the store's compute dtype. Throws UserError for another model.
void load_weights(ParamStore& params, Stream& stream, const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace meshtrain
