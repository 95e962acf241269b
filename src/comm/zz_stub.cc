#include "comm/engines.h"
namespace meshtrain {
bool has_mpi() { return false; }
std::unique_ptr<World> make_mpi_world(int, const WorldOptions&, MpiCollectives) { throw UserError("no mpi"); }
}
