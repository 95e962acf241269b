// What every engine of the Communicator must do. Knows no test framework: ranks may be threads, forked
// processes, or the processes of an MPI launcher (program comm_conformance).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"

namespace meshtrain::testing {

// kQuick: small counts only.
enum class Extent : std::uint8_t { kFull, kQuick };

// Called by every rank of the world with the same extent. Returns what failed on this rank, in words; an
// exception is the last failure, and leaves the world unfit for more.
std::vector<std::string> run_conformance(World& world, Extent extent = Extent::kFull);

}  // namespace meshtrain::testing
