#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/nearest.h"

namespace meshtrain {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"constant", "cosine", "linear", "wsd"};

// How far the way from `begin` (0) to `end` (1) is gone at `step`, begin < step <= end.
double progress(std::int64_t step, std::int64_t begin, std::int64_t end) {
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

double linear(const Schedule& s, double x) {
  return s.min_lr + (s.lr - s.min_lr) * (1.0 - x);
}

double cosine(const Schedule& s, double x) {
  return s.min_lr + (s.lr - s.min_lr) * (0.5 * (1.0 + std::cos(std::numbers::pi * x)));
}

double warmup_stable_decay(const Schedule& s, std::int64_t step) {
  const std::int64_t decay_steps = std::llround(s.decay_fraction * static_cast<double>(s.steps));
  const std::int64_t stable_until = std::max(s.warmup, s.steps - decay_steps);
  return step <= stable_until ? s.lr : linear(s, progress(step, stable_until, s.steps));
}

}  // namespace

std::string_view name_of(ScheduleKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<std::string> schedule_names() {
  return {kNames.begin(), kNames.end()};
}

ScheduleKind parse_schedule(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ScheduleKind>(i);
  }
  const std::vector<std::string> names = schedule_names();
  throw_user_error("optimizer.schedule = \"{}\" is not a schedule{}. There are: {}.", name,
                   nearest_hint(name, names), fmt::join(names, ", "));
}

void validate(const Schedule& s) {
  if (!(s.lr >= 0.0) || !std::isfinite(s.lr)) {
    throw_user_error("optimizer.lr = {} is out of range: it must be a finite number, 0 or more.", s.lr);
  }
  if (s.steps < 1) throw_user_error("train.steps = {} is out of range: it must be at least 1.", s.steps);
  if (s.warmup < 0 || s.warmup > s.steps) {
    throw_user_error("optimizer.warmup = {} is out of range: it must be from 0 to train.steps = {}.", s.warmup,
                     s.steps);
  }
  if (!(s.min_lr >= 0.0 && s.min_lr <= s.lr)) {
    throw_user_error("optimizer.min_lr = {} is out of range: it must be from 0 to optimizer.lr = {}.", s.min_lr,
                     s.lr);
  }
  if (!(s.decay_fraction >= 0.0 && s.decay_fraction <= 1.0)) {
    throw_user_error("optimizer.decay_fraction = {} is out of range: it must be from 0 to 1.",
                     s.decay_fraction);
  }
}

double learning_rate(const Schedule& s, std::int64_t step) {
  check(step >= 1, "learning_rate: steps count from 1");
  step = std::min(step, s.steps);
  if (step <= s.warmup) return s.lr * progress(step, 0, s.warmup);
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return s.lr;
    case ScheduleKind::kLinear:
      return linear(s, progress(step, s.warmup, s.steps));
    case ScheduleKind::kCosine:
      return cosine(s, progress(step, s.warmup, s.steps));
    case ScheduleKind::kWsd:
      return warmup_stable_decay(s, step);
  }
  return s.lr;
}

}  // namespace meshtrain
