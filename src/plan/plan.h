// What a run would cost, from the trainer itself run on a simulated device.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "device/memory.h"
#include "model/transformer.h"
#include "train/config.h"

namespace meshtrain {

struct Plan {
  MemoryUse memory;                        // bytes, by category, at their peak
  std::int64_t parameters = 0;             // trained, a tied weight once
  std::vector<LayerProfile> layers;        // one micro-batch
  std::int64_t step_flops = 0;             // matrix products and attention of one optimizer step, as executed
  std::int64_t model_flops_per_token = 0;  // what MFU counts (model/flops.h)
  std::int64_t tokens_per_step = 0;
};

// config.model.vocab must be known. Allocates next to nothing.
Plan make_plan(const Config& config);

nlohmann::json to_json(const Plan& plan, const Config& config);
// For people: memory by category, layers (equal neighbours folded), FLOPs.
std::string to_text(const Plan& plan, const Config& config);

}  // namespace meshtrain
