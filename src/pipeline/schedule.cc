#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "pipeline/schedules.h"

namespace meshtrain {
namespace {

constexpr std::array kSchedules = {&kGpipe, &kOneFOneB, &kInterleaved, &kZbH1};

bool splits(const std::vector<PipelineAction>& order) {
  return std::any_of(order.begin(), order.end(),
                     [](const PipelineAction& action) { return action.step == PipelineStep::kBackwardWeight; });
}

// Most that there is between actions `first` and `last` of the micro-batches, both included.
template <class Weight>
std::int64_t peak_between(const std::vector<PipelineAction>& order, PipelineStep first, PipelineStep last,
                          Weight weight) {
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const PipelineAction& action : order) {
    if (action.step == first) peak = std::max(peak, live += weight(action.chunk));
    if (action.step == last) live -= weight(action.chunk);
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

std::int64_t peak_live(const std::vector<PipelineAction>& order, const std::vector<std::int64_t>& weights) {
  return peak_between(order, PipelineStep::kForward,
                      splits(order) ? PipelineStep::kBackwardWeight : PipelineStep::kBackward,
                      [&](int chunk) { return weights.at(static_cast<std::size_t>(chunk)); });
}

std::int64_t peak_live(const std::vector<PipelineAction>& order) {
  return peak_between(order, PipelineStep::kForward,
                      splits(order) ? PipelineStep::kBackwardWeight : PipelineStep::kBackward,
                      [](int) { return 1; });
}

std::int64_t peak_split(const std::vector<PipelineAction>& order) {
  if (!splits(order)) return 0;
  return peak_between(order, PipelineStep::kBackward, PipelineStep::kBackwardWeight, [](int) { return 1; });
}

}  // namespace meshtrain
