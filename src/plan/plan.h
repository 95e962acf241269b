// What a run would cost, from the trainer itself run on a simulated device: one rank of every pipeline stage,
// since tensor- and data-parallel ranks of a stage differ in which parts they have, not in how much.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "model/piece.h"
#include "model/transformer.h"
#include "train/axis_bytes.h"
#include "train/config.h"

namespace meshtrain {

// A whole number of them, exact up to 2^64: a step of a large model takes more.
using StepFlops = long double;

// One rank.
struct RankPlan {
  MemoryUse memory;      // bytes, by category, at their peak
  CommStats sent;        // a step, by what it is for
  AxisBytes along_axes;  // a step, the same without the control values
};

// Layers that a stage computes one after the other.
struct PiecePlan {
  ModelPiece layers;
  std::int64_t live = 0;              // micro-batches alive at once
  std::int64_t activation_bytes = 0;  // of each
  // Of one micro-batch on one rank, by PipelineStep: forward, backward, and weight gradients where a schedule
  // has them apart.
  std::array<std::int64_t, 3> flops{};
};

// One rank of a pipeline stage.
struct StagePlan {
  RankPlan rank;
  std::vector<PiecePlan> pieces;
  std::int64_t live = 0;   // micro-batches of all pieces alive at once
  std::int64_t split = 0;  // of them, between the two parts of their backward pass, where a schedule splits it
  std::int64_t split_bytes = 0;  // and what each of these keeps besides
  std::int64_t parameters = 0;   // trained by the rank
  StepFlops flops = 0;           // of the rank in a step, as executed
};

// What a ZeRO stage would take of the most loaded rank.
struct ZeroPlan {
  int zero = 0;
  std::int64_t states = 0;  // bytes of parameters, gradients, masters and optimizer state
  // The same with gradients in the type of compute, as the ZeRO paper counts: 16 bytes a parameter with Adam.
  std::int64_t states_16_bit_gradients = 0;
  std::int64_t memory = 0;  // of all categories
  std::int64_t sent = 0;    // gradients and parameters, a step
};

struct Plan {
  // Bytes of the first stage's workspace that checkpoints are written from (checkpoint.async).
  std::int64_t checkpoint_copy = 0;
  std::vector<StagePlan> stages;  // of the pipeline
  std::int64_t ranks_of_stage = 1;
  std::vector<ZeroPlan> zero_stages;  // all of them, where there are ranks to share with
  std::int64_t parameters = 0;        // trained, a tied weight once
  // One micro-batch, in the order of the model: parameters and FLOPs of all its tensor-parallel ranks together,
  // activations of one.
  std::vector<LayerProfile> layers;
  StepFlops step_flops = 0;                // of all ranks, as executed: matrix products and attention
  std::int64_t model_flops_per_token = 0;  // what MFU counts (model/flops.h)
  std::int64_t tokens_per_step = 0;

  std::int64_t ranks() const { return ranks_of_stage * static_cast<std::int64_t>(stages.size()); }
  const RankPlan& rank(std::int64_t rank) const {
    return stages[static_cast<std::size_t>(rank / ranks_of_stage)].rank;
  }
};

// Bytes a step between the ranks of two neighbouring stages: a pair of each tensor- and data-parallel place.
struct StageLink {
  std::int64_t from = 0;
  std::int64_t to = 0;  // the next; from the last to the first with several pieces a stage
  std::int64_t activations = 0;
  std::int64_t gradients = 0;  // back
};
std::vector<StageLink> stage_links(const Plan& plan);
// The stage whose ranks send most of these together; the first of equals.
std::int64_t busiest_stage(const Plan& plan, std::initializer_list<AxisTraffic> traffic);
std::int64_t sum_of(const AxisBytes& bytes, std::initializer_list<AxisTraffic> traffic);

// config.model.vocab must be known, and the mesh filled in (for_ranks). Allocates next to nothing.
Plan make_plan(const Config& config);

nlohmann::json to_json(const Plan& plan, const Config& config);
// For people: memory by category and stage, bytes sent, layers (equal neighbours folded), FLOPs.
std::string to_text(const Plan& plan, const Config& config);

}  // namespace meshtrain
