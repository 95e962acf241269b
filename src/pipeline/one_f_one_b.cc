// One forward, one backward (Narayanan et al. 2019, "PipeDream", section 3.2; with a flush at the end of the
// step): after a warm-up of min(m, p-1-r) forward passes, stage r alternates. It keeps min(m, p-r)
// micro-batches.
#include <algorithm>

#include "pipeline/schedules.h"

namespace meshtrain {
namespace {

std::vector<PipelineAction> one_f_one_b_order(const PipelineShape& shape, int stage) {
  const std::int64_t m = shape.micro_batches;
  const std::int64_t warm_up = std::min<std::int64_t>(m, shape.stages - 1 - stage);
  std::vector<PipelineAction> order;
  for (std::int64_t i = 0; i < warm_up; ++i) order.push_back({PipelineStep::kForward, 0, i});
  for (std::int64_t i = 0; i < m; ++i) {
    if (warm_up + i < m) order.push_back({PipelineStep::kForward, 0, warm_up + i});
    order.push_back({PipelineStep::kBackward, 0, i});
  }
  return order;
}

double one_f_one_b_idle(const PipelineShape& shape) {
  const double fill = shape.stages - 1;
  return fill / (static_cast<double>(shape.micro_batches) + fill);
}

}  // namespace

constinit const PipelineSchedule kOneFOneB = {.name = "1f1b",
                                              .idle_formula = "(p-1)/(m+p-1)",
                                              .idle_fraction = one_f_one_b_idle,
                                              .order = one_f_one_b_order};

}  // namespace meshtrain
