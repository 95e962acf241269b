// What a run puts into its checkpoints, and how it goes on from one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/weight_source.h"
#include "optim/loss_scale.h"
#include "train/assembly.h"
#include "train/whole_state.h"

namespace meshtrain {

// Where a run stands between two steps.
struct RunPosition {
  std::int64_t step = 0;      // steps done, skipped ones included
  std::int64_t updates = 0;   // updates applied
  std::int64_t position = 0;  // next global sample index
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
void load_weights(ParamStore& params, Stream& stream, const ModelSpec& spec, const WeightSource& source);
// A new run's masters, and its weights from them. A collective call; each rank reads what it owns.
void load_masters(Assembly& assembly, const WeightSource& source);

}  // namespace meshtrain
