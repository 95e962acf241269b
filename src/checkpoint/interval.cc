#include "checkpoint/interval.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace meshtrain {

double seconds_between_failures(double device_hours_per_failure, std::int64_t devices) {
  check(device_hours_per_failure > 0.0 && devices > 0, "a mean time between failures of nothing");
  return device_hours_per_failure * 3600.0 / static_cast<double>(devices);
}

double young_interval(double stall, double failures_apart) {
  return std::sqrt(2.0 * stall * failures_apart);
}

double young_waste(double stall, double failures_apart) {
  return std::sqrt(2.0 * stall / failures_apart);
}

// A failure falls anywhere between two checkpoints.
double lost_by_failure(double interval, double lag) {
  return 0.5 * interval + lag;
}

double waste_of_interval(double interval, double stall, double lag, double failures_apart) {
  return stall / interval + lost_by_failure(interval, lag) / failures_apart;
}

std::int64_t steps_in(double interval, double step_seconds) {
  constexpr double kMost = 1e15;  // far from the end of 64 bits
  return std::llround(std::clamp(interval / step_seconds, 1.0, kMost));
}

}  // namespace meshtrain
