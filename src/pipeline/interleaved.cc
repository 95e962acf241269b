// 1f1b over v chunks a stage (Narayanan et al. 2021, section 2.2). Groups of p micro-batches walk through the
// chunks, forward from the first to the last, backward from the last to the first. After a warm-up of
// 2·(p-1-r) + (v-1)·k forward passes, where k = p micro-batches are in a group, stage r alternates between the
// next forward and the next backward pass. One chunk is plain 1f1b, with a warm-up of p-1-r.
//
// Micro-batches that are no multiple of p: a group of less than p would leave the stages idle while its few
// micro-batches go round, and with strict alternation can stop them for good. So there are q = max(1, ⌊m/p⌋)
// even groups, the larger ones first, and k is the largest. What a group has more than p waits between the last
// stage and the first. While that fits into the buffers besides the one written and the one read (k ≤ p+2, so
// m ≤ q·(p+2)), the idle fraction is the published one. Else, so with a large remainder and few groups:
//   d < q or d·v < k-(p+2), where d = p·(q+1) - m
//             the order of p·(q+1) micro-batches without the d that do not exist: it ends because that one
//             does, and takes no longer; the stages wait for what would have been the d
//   q = 1     as ever: almost all of the group is warm-up, and some of it waits for a buffer
//   q > 1     all forward passes, then all backward passes, which keeps m·v alive: a second group with too many
//             would wait for buffers that empty after it
#include <algorithm>

#include "pipeline/schedules.h"
#include "pipeline/timeline.h"

namespace meshtrain {
namespace {

struct Plan {
  std::int64_t micro_batches;  // those that do not exist included
  std::int64_t groups;
  bool all_forward_first = false;
};

Plan plan_of(const PipelineShape& shape) {
  const std::int64_t p = shape.stages;
  const std::int64_t m = shape.micro_batches;
  const std::int64_t groups = std::max<std::int64_t>(1, m / p);
  const std::int64_t largest = (m + groups - 1) / groups;
  const std::int64_t too_many = largest - p - (kSendBuffers + kReceiveBuffers - 2);
  if (too_many <= 0) return {m, groups};
  const std::int64_t missing = p * (groups + 1) - m;
  if (missing < groups || missing * shape.chunks < too_many) return {m + missing, groups + 1};
  return {m, groups, groups > 1};
}

// All passes of one direction in the order of the groups.
std::vector<PipelineAction> passes(const Plan& plan, int chunks, PipelineStep step) {
  std::vector<PipelineAction> order;
  std::int64_t begin = 0;
  for (std::int64_t group = 0; group < plan.groups; ++group) {
    const std::int64_t size =
        plan.micro_batches / plan.groups + (group < plan.micro_batches % plan.groups ? 1 : 0);
    for (int c = 0; c < chunks; ++c) {
      const int chunk = step == PipelineStep::kForward ? c : chunks - 1 - c;
      for (std::int64_t i = 0; i < size; ++i) order.push_back({step, chunk, begin + i});
    }
    begin += size;
  }
  return order;
}

std::int64_t warm_up_of(const Plan& plan, const PipelineShape& shape, int stage) {
  const std::int64_t passes = plan.micro_batches * shape.chunks;
  const std::int64_t later_stages = shape.stages - 1 - stage;
  if (plan.all_forward_first) return passes;
  if (shape.chunks == 1) return std::min(passes, later_stages);
  const std::int64_t largest = (plan.micro_batches + plan.groups - 1) / plan.groups;
  return std::min(passes, 2 * later_stages + (shape.chunks - 1) * largest);
}

std::vector<PipelineAction> interleaved_order(const PipelineShape& shape, int stage) {
  // One chunk has no groups: its micro-batches never come back.
  const Plan plan = shape.chunks == 1 ? Plan{shape.micro_batches, 1} : plan_of(shape);
  const std::vector<PipelineAction> forward = passes(plan, shape.chunks, PipelineStep::kForward);
  const std::vector<PipelineAction> backward = passes(plan, shape.chunks, PipelineStep::kBackward);
  const std::int64_t warm_up = warm_up_of(plan, shape, stage);
  std::vector<PipelineAction> order(forward.begin(), forward.begin() + warm_up);
  for (std::size_t i = 0; i < backward.size(); ++i) {
    if (warm_up + i < forward.size()) order.push_back(forward[warm_up + i]);
    order.push_back(backward[i]);
  }
  std::erase_if(order, [&](const PipelineAction& action) { return action.micro_batch >= shape.micro_batches; });
  return order;
}

double interleaved_idle(const PipelineShape& shape) {
  const double fill = shape.stages - 1;
  return fill / (static_cast<double>(shape.micro_batches * shape.chunks) + fill);
}

}  // namespace

constinit const PipelineSchedule kInterleaved = {.name = "interleaved",
                                                 .takes_chunks = true,
                                                 .idle_formula = "(p-1)/(v*m+p-1)",
                                                 .idle_fraction = interleaved_idle,
                                                 .order = interleaved_order};

}  // namespace meshtrain
