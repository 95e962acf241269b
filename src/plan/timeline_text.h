// The pipeline of a config as a drawing.
#pragma once

#include <string>

#include "plan/plan.h"
#include "train/config.h"

namespace meshtrain {

// draw() of pipeline/timeline.h, and the idle part with the model's own FLOPs, which shows how even its split
// is. `plan` is of `config`. Says so where there is one stage.
std::string timeline_text(const Plan& plan, const Config& config, int columns);

}  // namespace meshtrain
