#include "train/run_report.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "checkpoint/checkpoint_folder.h"
#include "comm/agreement.h"

namespace meshtrain {

std::string last_line(const RunEnd& end, const std::string& checkpoint) {
  const std::int64_t steps = end.config.train.steps;
  if (checkpoint.empty()) return "stopped before step 1: there is nothing to resume from";
  if (end.place.step < steps || end.evaluation_owed) {
    const std::string left = end.place.step < steps ? fmt::format("step {} of {}", end.place.step, steps)
                                                    : fmt::format("step {}, before its evaluation", steps);
    return fmt::format(
        "stopped after {}: the run is not finished. Saved in {}; to resume: `meshtrain train {} --resume`",
        left, checkpoint, end.config.output.dir);
  }
  return fmt::format("{} steps, loss {}; run folder {}", end.place.step,
                     end.loss ? fmt::format("{:.4f}", *end.loss) : "n/a", end.config.output.dir);
}

void check_something_was_trained(const RunEnd& end) {
  const std::int64_t steps = end.place.step - end.start.step;
  if (end.place.step < end.config.train.steps || steps == 0 || end.place.updates > end.start.updates) return;
  throw AgreedError(fmt::format(
      "nothing was trained: the gradients of {} overflowed in fp16 (loss scale {:g} at the end), so that each "
      "step was "
      "skipped and the weights are as they were. Use precision.compute = \"bf16\", a lower "
      "precision.loss_scale, or "
      "more steps, each of which halves it",
      steps == 1 ? "the only step" : fmt::format("all {} steps", steps), end.loss_scale.value_or(1.0)));
}

std::string with_advice(std::string_view failure, const Config& config) {
  if (failure.ends_with('.')) failure.remove_suffix(1);
  std::error_code ignored;
  // A folder that is gone says nothing about what was saved.
  if (!std::filesystem::is_directory(config.checkpoint.dir, ignored)) return std::string(failure);
  const std::optional<CheckpointPlace> newest = newest_checkpoint(config.checkpoint.dir);
  if (!newest) return fmt::format("{}. No checkpoint was saved before", failure);
  return fmt::format("{}. The newest checkpoint is {}; to resume from it: `meshtrain train {} --resume`",
                     failure, newest->path, config.output.dir);
}

}  // namespace meshtrain
