#include "train/rollback.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "train/resume.h"

namespace meshtrain {
namespace {

RollbackMetrics metrics_of(const BadStep& bad, std::int64_t step, std::int64_t bad_step,
                           const std::vector<SampleRange>& left_out) {
  RollbackMetrics metrics;
  metrics.step = step;
  metrics.bad_step = bad_step;
  metrics.reason = name_of(bad.reason);
  metrics.loss = bad.loss;
  metrics.grad_norm = bad.grad_norm;
  metrics.threshold = bad.threshold;
  for (const SampleRange& range : left_out) metrics.left_out.emplace_back(range.first, range.count);
  return metrics;
}

ResumeSource source_to_go_back_to(Assembly& assembly, const std::string& started_from) {
  Communicator& ranks = *assembly.groups.control;
  ResumeSource own = newest_whole_checkpoint(assembly.config().checkpoint.dir, ranks);
  return own.checkpoint || started_from.empty() ? std::move(own) : whole_checkpoint(started_from, ranks);
}

RunPosition load(Assembly& assembly, const Checkpoint* checkpoint) {
  if (checkpoint != nullptr) return restore(assembly, *checkpoint);
  assembly.clear_optimizer_state();
  assembly.initialize();
  return {};
}

}  // namespace

RunPosition roll_back(Assembly& assembly, RunOutput* output, const RunPosition& place, const BadStep& bad,
                      const std::string& started_from) {
  const std::int64_t bad_step = place.step + 1;
  assembly.settle();
  ResumeSource source;
  RunPosition now;
  try {
    source = source_to_go_back_to(assembly, started_from);
    now = load(assembly, source.checkpoint.get());
  } catch (const UserError& error) {
    throw_run_error("going back because of step {} ({}): {}", bad_step, name_of(bad.reason), error.what());
  }
  BadStepRecord record = place.bad_steps;
  record.norms = std::move(now.bad_steps.norms);
  ++record.rollbacks;
  const std::vector<SampleRange> left_out =
      record.left_out.leave_out(place.position, assembly.config().train.global_batch);
  now.bad_steps = std::move(record);
  if (output != nullptr) {
    output->roll_back(metrics_of(bad, now.step, bad_step, left_out),
                      source.checkpoint ? source.checkpoint->path() : "");
  }
  return now;
}

}  // namespace meshtrain
