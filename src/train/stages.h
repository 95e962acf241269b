// Which layers of the model each pipeline stage computes, and by which schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "model/piece.h"
#include "pipeline/schedule.h"
#include "train/config.h"

namespace meshtrain {

// mesh.pp · mesh.virtual_stages: how many pieces the model is cut into.
std::int64_t piece_count(const MeshConfig& mesh);

// Blocks of each piece where mesh.stage_layers leaves them open: balanced_split() with the FLOPs of a token as
// costs, forward and backward, at data.seq_len (model/flops.h). The embedding multiplies nothing; it counts 6
// for each element that it looks up, as if it did. While model.vocab is not known, the head counts nothing.
// Needs model.layers ≥ pieces - 2.
std::vector<std::int64_t> balanced_stage_layers(const Config& config);

// The schedule of the mesh: with one stage there is nothing to order, and all are as 1f1b.
const PipelineSchedule& schedule_of(const MeshConfig& mesh);
// Stages, chunks and micro-batches of a step of one pipeline. mesh.dp must be filled in.
PipelineShape pipeline_of(const Config& config);

// The config with `steps` micro-batches a step of each pipeline.
Config with_micro_steps(Config config, std::int64_t steps);

// All pieces in the order of the model; the config must have passed check_mesh() (train/mesh_rules.h).
std::vector<ModelPiece> pieces_of(const Config& config);
// Those of one stage, by chunk: pieces stage, stage + pp, …
std::vector<ModelPiece> pieces_of_stage(const Config& config, std::int64_t stage);

}  // namespace meshtrain
