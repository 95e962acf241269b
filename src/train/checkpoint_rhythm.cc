#include "train/checkpoint_rhythm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/median.h"
#include "base/stopwatch.h"
#include "checkpoint/interval.h"
#include "telemetry/units.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

CheckpointRhythm::Clock wall_clock() {
  return [watch = Stopwatch()] { return watch.seconds(); };
}

// Whether the user has been told of about as many.
bool near(std::int64_t a, std::int64_t b) {
  constexpr double kNotable = 1.5;
  return static_cast<double>(std::max(a, b)) <= kNotable * static_cast<double>(std::min(a, b));
}

}  // namespace

double seconds_between_failures(const Config& config) {
  if (config.checkpoint.mtbf_hours > 0.0) return config.checkpoint.mtbf_hours * 3600.0;
  return seconds_between_failures(kDeviceHoursPerFailure, ranks_of(config.mesh));
}

double auto_interval(const Config& config, const SaveTimes& times) {
  constexpr double kMostLost = 1800.0;
  constexpr double kLeastCost = 0.01;
  double interval = young_interval(times.stall, seconds_between_failures(config));
  if (config.checkpoint.mtbf_hours == 0.0) {
    interval = std::min(interval, std::max(kMostLost, times.stall / kLeastCost));
  }
  return std::max(interval, times.writing);
}

CheckpointRhythm::CheckpointRhythm(const Config& config) : CheckpointRhythm(config, wall_clock()) {}

CheckpointRhythm::CheckpointRhythm(const Config& config, Clock clock)
    : config_(config), clock_(std::move(clock)), auto_(config.checkpoint.every == CheckpointConfig::kAuto) {}

void CheckpointRhythm::begin(std::int64_t step) {
  last_ = step;
  next_ = step + kFirst;
  resumed_at_ = clock_();
}

bool CheckpointRhythm::due(std::int64_t step) const {
  if (auto_) return step >= next_;
  return config_.checkpoint.every > 0 && step % config_.checkpoint.every == 0;
}

std::string CheckpointRhythm::saved(std::int64_t step, const SaveTimes& times, Communicator& ranks) {
  if (!auto_) return "";
  Choice choice;
  if (ranks.rank() == 0) choice = choose(step, times);
  ranks.broadcast(Tensor(&choice.steps, DType::kI64, {1}), 0, Traffic::kOther);
  last_ = step;
  next_ = step + choice.steps;
  resumed_at_ = clock_();
  return choice.message;
}

CheckpointRhythm::Choice CheckpointRhythm::choose(std::int64_t step, const SaveTimes& times) {
  constexpr std::size_t kRecent = 5;
  constexpr std::int64_t kGrowth = 4;
  stalls_.push_back(times.stall);
  if (stalls_.size() > kRecent) stalls_.erase(stalls_.begin());
  const auto steps = static_cast<double>(std::max<std::int64_t>(step - last_, 1));
  const double step_seconds = std::max(clock_() - resumed_at_ - times.stall, 1e-9) / steps;
  const SaveTimes usual = {.stall = median(stalls_), .writing = times.writing};
  const double interval = auto_interval(config_, usual);
  const std::int64_t best = steps_in(interval, step_seconds);
  Choice choice = {.steps = std::min(best, kGrowth * std::max(step - last_, kFirst)), .message = {}};
  if (told_ == 0 || !near(best, told_)) {
    told_ = best;
    choice.message = fmt::format(
        "checkpoint.every = \"auto\": every {}, about {}, as a save holds training for {} and a failure is "
        "taken to come every {}{}",
        format_count(best, "step"), format_duration(static_cast<double>(best) * step_seconds),
        format_duration(usual.stall), format_duration(seconds_between_failures(config_)),
        config_.checkpoint.mtbf_hours > 0.0 ? "" : " (checkpoint.mtbf_hours is not set)");
  }
  return choice;
}

}  // namespace meshtrain
