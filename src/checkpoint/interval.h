// How often to save. J. W. Young, "A first order approximation to the optimum checkpoint interval",
// Communications of the ACM 17(9), 1974. All times in seconds.
//
// Model: failures come at random, one in `failures_apart` on average; a checkpoint stops training for `stall`;
// a failure loses what was done since the checkpoint before it. Holds where stall is much less than
// failures_apart. What a restart itself takes is the same for every interval and not counted.
#pragma once

#include <cstdint>

namespace meshtrain {

// What a device (a rank, here) is taken to stand without a failure where nothing else is known.
inline constexpr double kDeviceHoursPerFailure = 50'000.0;

// Mean time between failures of a job on so many devices, each of which ends all of it.
double seconds_between_failures(double device_hours_per_failure, std::int64_t devices);

// The training between two checkpoints that wastes least, sqrt(2 · stall · failures_apart).
double young_interval(double stall, double failures_apart);
// Part of the time that it wastes, sqrt(2 · stall / failures_apart).
double young_waste(double stall, double failures_apart);

// The same of any interval. `lag`: from when a checkpoint holds training until it is committed, where training
// goes on meanwhile: a failure loses that, too.
double lost_by_failure(double interval, double lag);
double waste_of_interval(double interval, double stall, double lag, double failures_apart);

// The nearest number of steps that takes `interval`, at least 1.
std::int64_t steps_in(double interval, double step_seconds);

}  // namespace meshtrain
