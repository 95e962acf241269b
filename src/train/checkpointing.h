// What a rank puts into a run's checkpoints, and how a run goes on from one, on any mesh.
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
#include "train/bad_steps.h"

namespace meshtrain {

// Where a run stands between two steps.
struct RunPosition {
  std::int64_t step = 0;      // steps done, skipped ones included
  std::int64_t updates = 0;   // updates applied
  std::int64_t position = 0;  // samples trained on: the next one is the first after these
  BadStepRecord bad_steps = {};
  friend bool operator==(const RunPosition&, const RunPosition&) = default;
};

// This rank's share of masters and optimizer state: views of the assembly's memory. Of what data-parallel ranks
// all hold, each has the part that it would own under ZeRO; of what tensor-parallel ranks all hold, the first
// has it. So all ranks' pieces are the whole state once. Nothing may change while they are in use, and
// assembly.settle() comes before. `contents.state` is for rank 0.
CheckpointContents checkpoint_contents(const Assembly& assembly, const RunPosition& position);

// The most that a rank of this tensor-parallel coordinate and stage writes of tensors.
std::int64_t checkpoint_bytes(const Assembly& assembly);

// Fills this rank's masters and optimizer state, all weights, the loss scale and token_ids; the mesh may be
// another than that which wrote it, and only what this rank owns is read. A checkpoint that has weights alone
// gives a fresh optimizer. A collective call. Throws UserError when the checkpoint is of another model or
// optimizer.
RunPosition restore(Assembly& assembly, const Checkpoint& checkpoint);

// This rank's masters and all weights; the optimizer starts afresh. A collective call. Throws UserError for
// another model, as far as shapes tell.
void load_masters(Assembly& assembly, const WeightSource& source);

// Where a run is that resumes from the checkpoint. Throws UserError when its manifest does not say.
RunPosition position_of(const Checkpoint& checkpoint);

// The config that the checkpoint's run was started with, changed by overrides "section.key=value".
Config config_of(const Checkpoint& checkpoint, const std::vector<std::string>& overrides = {});

// Throws UserError naming the first key in which the checkpoint's model is another than `spec`.
void check_same_model(const ModelSpec& spec, const Checkpoint& checkpoint);

// Weights only, rounded to the store's compute dtype. Throws UserError for another model, as far as shapes
// tell.
void load_weights(ParamStore& params, Stream& stream, const WeightSource& source);

}  // namespace meshtrain
