#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "pipeline/schedules.h"

namespace meshtrain {
namespace {

constexpr std::array kSchedules = {&kGpipe, &kOneFOneB, &kInterleaved, &kZbH1};

// Of the actions that `counted` takes.
template <class Counted>
std::int64_t peak_live_of(const std::vector<PipelineAction>& order, Counted counted) {
  const bool splits = std::any_of(order.begin(), order.end(), [](const PipelineAction& action) {
    return action.step == PipelineStep::kBackwardWeight;
  });
  const PipelineStep last = splits ? PipelineStep::kBackwardWeight : PipelineStep::kBackward;
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const PipelineAction& action : order) {
    if (!counted(action)) continue;
    if (action.step == PipelineStep::kForward) peak = std::max(peak, ++live);
    if (action.step == last) --live;
  }
  return peak;
}

}  // namespace

std::string to_string(const PipelineAction& action, int chunks) {
  constexpr std::string_view kLetters = "FBW";
  const char letter = kLetters[static_cast<std::size_t>(action.step)];
  if (chunks == 1) return fmt::format("{}{}", letter, action.micro_batch);
  return fmt::format("{}{}.{}", letter, action.micro_batch, action.chunk);
}

const PipelineSchedule* find_schedule(std::string_view name) {
  const auto found = std::find_if(kSchedules.begin(), kSchedules.end(),
                                  [&](const PipelineSchedule* schedule) { return schedule->name == name; });
  return found == kSchedules.end() ? nullptr : *found;
}

std::vector<std::string> pipeline_schedule_names() {
  std::vector<std::string> names;
  for (const PipelineSchedule* schedule : kSchedules) names.emplace_back(schedule->name);
  return names;
}

std::vector<std::vector<PipelineAction>> orders_of(const PipelineSchedule& schedule,
                                                   const PipelineShape& shape) {
  check(shape.stages >= 1 && shape.chunks >= 1 && shape.micro_batches >= 1, "a pipeline of nothing");
  check(shape.chunks == 1 || schedule.takes_chunks, "a schedule of one chunk a stage is asked for several");
  std::vector<std::vector<PipelineAction>> orders;
  for (int stage = 0; stage < shape.stages; ++stage) orders.push_back(schedule.order(shape, stage));
  return orders;
}

std::int64_t peak_live(const std::vector<PipelineAction>& order, int chunk) {
  return peak_live_of(order, [&](const PipelineAction& action) { return action.chunk == chunk; });
}

std::int64_t peak_live(const std::vector<PipelineAction>& order) {
  return peak_live_of(order, [](const PipelineAction&) { return true; });
}

}  // namespace meshtrain
