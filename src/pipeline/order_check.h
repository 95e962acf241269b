// Whether the orders of a schedule keep the rules that hold on each stage by itself.
#pragma once

#include <vector>

#include "pipeline/schedule.h"

namespace meshtrain {

// Throws std::logic_error naming the stage and the action unless every action is there once, the micro-batches
// of a chunk ascend in every step, and forward comes before backward before the weights' part (which all have,
// or none); with one stage, also a chunk after the one that hands over to it.
void check_orders(const PipelineShape& shape, const std::vector<std::vector<PipelineAction>>& orders);

}  // namespace meshtrain
