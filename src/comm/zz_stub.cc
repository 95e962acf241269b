#include "comm/engines.h"
namespace meshtrain {
bool has_mpi() { return false; }
std::unique_ptr<World> make_mpi_world(int, const WorldOptions&, MpiCollectives) { throw UserError("no mpi"); }
std::shared_ptr<ShmArea> ShmArea::create(int, Ranks) { throw UserError("no shm"); }
std::shared_ptr<ShmArea> ShmArea::rendezvous(const std::string&, int, int, const WorldOptions&) { throw UserError("no shm"); }
}
