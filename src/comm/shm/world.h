#pragma once

#include <memory>

#include "comm/shm/area.h"
#include "comm/world.h"

namespace meshtrain::shm {

// One rank's view of the shared memory of a host.
std::unique_ptr<World> make_world(std::shared_ptr<Area> area, int rank, const WorldOptions& options);

}  // namespace meshtrain::shm
