// The cores of one host, split between its ranks.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "comm/world.h"

namespace meshtrain {

// Cores in the order in which they are split: those of one memory node together, then the threads of one core.
// What the system does not say keeps the order of the numbers. `sysfs`: the folder cpu of the system.
std::vector<int> in_order_of_topology(std::vector<int> cores,
                                      const std::filesystem::path& sysfs = "/sys/devices/system/cpu");

// The cores of share `share` of `shares`: contiguous, disjoint, the first ones longer by one where it does not
// come out even. Empty when there are fewer cores than shares.
std::span<const int> share_of_cores(std::span<const int> cores, int share, int shares);

// Binds this thread and those that it will start to its share of `cores`, unless that is empty. Returns how
// many threads to compute on: OMP_NUM_THREADS, else as many as the share has cores, at least one.
int take_cores(std::span<const int> cores, int share, int shares);

// The same for the ranks of another launcher: those of a host that are bound to the same cores share them.
// Called by every rank of the world.
int take_cores(World& world);

}  // namespace meshtrain
