// All forward passes, then all backward passes (Huang et al. 2019, "GPipe"), these in the order of the
// micro-batches too: gradients add up in one order whatever the schedule. Every stage keeps all micro-batches.
#include "pipeline/schedules.h"

namespace meshtrain {
namespace {

std::vector<PipelineAction> gpipe_order(const PipelineShape& shape, int /*stage*/) {
  std::vector<PipelineAction> order;
  for (const PipelineStep step : {PipelineStep::kForward, PipelineStep::kBackward}) {
    for (std::int64_t i = 0; i < shape.micro_batches; ++i) order.push_back({step, 0, i});
  }
  return order;
}

double gpipe_idle(const PipelineShape& shape) {
  const double fill = shape.stages - 1;
  return fill / (static_cast<double>(shape.micro_batches) + fill);
}

}  // namespace

constinit const PipelineSchedule kGpipe = {
    .name = "gpipe", .idle_formula = "(p-1)/(m+p-1)", .idle_fraction = gpipe_idle, .order = gpipe_order};

}  // namespace meshtrain
