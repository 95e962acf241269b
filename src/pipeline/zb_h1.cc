// Zero bubble, H1 (Qi et al. 2024, "Zero bubble pipeline parallelism", section 2.1): 1f1b whose backward pass
// is in two parts. Only the gradients of inputs are waited for by the stage before; those of weights follow r
// backward passes later on stage r, and so fill what was idle at the end. Every stage has a micro-batch for
// each of its p-1-r warm-up passes, of the r that wait for their second part, and of the one at work: min(m, p)
// in all, as the first stage of 1f1b. Idle for (p-1) of 3m+p-1 units of time where m ≥ p. Fewer micro-batches
// take 2m+2p-1, which is the least: the last one reaches the last stage after p-1 and m forward and m backward
// passes go through there, p-1 backward passes take it to the first, and its weights' part is left.
#include <algorithm>

#include "pipeline/schedules.h"

namespace meshtrain {
namespace {

std::vector<PipelineAction> zb_h1_order(const PipelineShape& shape, int stage) {
  const std::int64_t m = shape.micro_batches;
  std::vector<PipelineAction> order;
  for (const PipelineAction& action : kOneFOneB.order(shape, stage)) {
    order.push_back(action);
    if (action.step == PipelineStep::kBackward && action.micro_batch >= stage) {
      order.push_back({PipelineStep::kBackwardWeight, 0, action.micro_batch - stage});
    }
  }
  for (std::int64_t i = std::max<std::int64_t>(0, m - stage); i < m; ++i) {
    order.push_back({PipelineStep::kBackwardWeight, 0, i});
  }
  return order;
}

double zb_h1_idle(const PipelineShape& shape) {
  const double fill = shape.stages - 1;
  return fill / (3.0 * static_cast<double>(shape.micro_batches) + fill);
}

}  // namespace

constinit const PipelineSchedule kZbH1 = {.name = "zb-h1",
                                          .splits_backward = true,
                                          .idle_formula = "(p-1)/(3m+p-1)",
                                          .idle_fraction = zb_h1_idle,
                                          .order = zb_h1_order};

}  // namespace meshtrain
