// What a run would cost, from the trainer itself run on a simulated device.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "model/transformer.h"
#include "train/config.h"

namespace meshtrain {

// One rank.
struct RankPlan {
  MemoryUse memory;  // bytes, by category, at their peak
  CommStats sent;    // a step
};

// What a ZeRO stage would take of a rank that writes no checkpoint.
struct StagePlan {
  int zero = 0;
  std::int64_t states = 0;  // bytes of parameters, gradients, masters and optimizer state
  // The same with gradients in the type of compute, as the ZeRO paper counts: 16 bytes a parameter with Adam.
  std::int64_t states_16_bit_gradients = 0;
  std::int64_t memory = 0;  // of all categories
  std::int64_t sent = 0;    // gradients and parameters, a step
};

struct Plan {
  MemoryUse memory;  // of rank 0
  std::vector<RankPlan> ranks;
  std::vector<StagePlan> stages;           // all of them, where there are ranks to share with
  std::int64_t parameters = 0;             // trained, a tied weight once
  std::vector<LayerProfile> layers;        // one micro-batch
  std::int64_t step_flops = 0;             // matrix products and attention of one optimizer step, as executed
  std::int64_t model_flops_per_token = 0;  // what MFU counts (model/flops.h)
  std::int64_t tokens_per_step = 0;
};

// config.model.vocab must be known, and the mesh filled in (for_ranks). Allocates next to nothing.
Plan make_plan(const Config& config);

nlohmann::json to_json(const Plan& plan, const Config& config);
// For people: memory by category, layers (equal neighbours folded), FLOPs.
std::string to_text(const Plan& plan, const Config& config);

}  // namespace meshtrain
