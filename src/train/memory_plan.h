// What a rank will need, from a step on a simulated device.
#pragma once

#include "comm/world.h"
#include "device/device.h"
#include "train/assembly.h"

namespace meshtrain {

// Runs one step and one evaluation of rank `rank` over measuring arenas on a simulated device. The mesh must be
// filled in (for_ranks), here and below.
ArenaSizes measure_arenas(const Config& config, int rank = 0);

// What a rank needs, as its assembly says.
struct MemoryPlan {
  ArenaSizes arenas;
  MemoryUse use;                     // at its peak
  std::int64_t checkpoint_copy = 0;  // bytes of it that a checkpoint is copied to (checkpoint.async)
};
MemoryPlan memory_of_rank(const Config& config, int rank);

// The arenas of a run on `device`, which the ranks of this host share: throws UserError with the bytes by
// category when it has not so many to give.
ArenaSizes plan_memory(const Config& config, const Device& device, const World& world);

}  // namespace meshtrain
