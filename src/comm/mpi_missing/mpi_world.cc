// In the place of comm/mpi where the build found no MPI library.
#include "base/error.h"
#include "comm/engines.h"

namespace meshtrain {

bool has_mpi() {
  return false;
}

std::unique_ptr<World> make_mpi_world(int /*expected*/, const WorldOptions& /*options*/,
                                      MpiCollectives /*collectives*/) {
  throw_user_error(
      "engine mpi was asked for, and this meshtrain was built where no MPI library was found; install one "
      "(Debian: "
      "libopenmpi-dev openmpi-bin) and build again, or use engine shm for ranks of one host");
}

}  // namespace meshtrain
