// The learning rate of each step.
//
// With S steps, W of warm-up, peak rate lr and last rate min, at step t = 1 … S:
//   warm-up   t <= W:  lr · t / W, so that step W has lr itself;
//   then, with x = (t - W) / (S - W), which is 1 at the last step:
//   constant  lr
//   linear    min + (lr - min) · (1 - x)
//   cosine    min + (lr - min) · (1 + cos(pi x)) / 2                 (Loshchilov & Hutter 2017, one period)
//   wsd       lr until the last D = round(decay_fraction · S) steps, or the end of the warm-up if that is
//             later; from there linear to min         (warmup-stable-decay: Hu et al. 2024, Hägele et al. 2024)
// All but constant give exactly min at step S, unless the warm-up lasts to the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

enum class ScheduleKind : std::uint8_t { kConstant, kCosine, kLinear, kWsd };

std::string_view name_of(ScheduleKind kind);
std::vector<std::string> schedule_names();
// Throws UserError naming optimizer.schedule and the nearest known name.
ScheduleKind parse_schedule(std::string_view name);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double lr = 0.0;
  std::int64_t steps = 1;
  std::int64_t warmup = 0;
  double min_lr = 0.0;
  double decay_fraction = 0.2;  // wsd
};

// Throws UserError naming the config key, its value and what would do.
void validate(const Schedule& schedule);

// Of step >= 1 of a valid schedule; steps past the last have the last one's.
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace meshtrain
