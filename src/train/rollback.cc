#include "train/rollback.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/agreement.h"
#include "train/model_source.h"
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

// `last`: the newest checkpoint of this run, or the one that it went on from; empty: neither.
ResumeSource source_to_go_back_to(Assembly& assembly, const std::string& last) {
  Communicator& ranks = *assembly.groups.control;
  ResumeSource own = newest_whole_checkpoint(assembly.config().checkpoint.dir, ranks);
  return own.checkpoint || last.empty() ? std::move(own) : whole_checkpoint(last, ranks);
}

}  // namespace

RunPosition load_start(Assembly& assembly, const Checkpoint* checkpoint) {
  if (checkpoint != nullptr) return restore(assembly, *checkpoint);
  initialize_weights(assembly);
  return {};
}

RunPosition roll_back(Assembly& assembly, CheckpointWriter& writer, RunOutput* output, const RunPosition& place,
                      const BadStep& bad) {
  const std::int64_t bad_step = place.step + 1;
  assembly.settle();
  writer.flush();
  const std::string last =
      text_of_first(*assembly.groups.control, output != nullptr ? output->checkpoint() : "");
  ResumeSource source;
  RunPosition now;
  try {
    assembly.reset_optimizer();
    source = source_to_go_back_to(assembly, last);
    now = load_start(assembly, source.checkpoint.get());
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
