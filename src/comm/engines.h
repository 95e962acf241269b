// The engines, one folder each. A new one is a folder with a factory here, and passes the conformance suite
// (tests/comm_conformance.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"

namespace meshtrain {

// --- single: one rank, which needs nobody. ---
std::unique_ptr<World> make_single_world();

// --- shm: processes or threads of one host. ---

// The memory that connects the ranks: a file without a name, which is gone with its last process.
// Made before ranks fork or start; each rank then joins once. Outlives their worlds.
class ShmArea {
 public:
  // Threads share every address; processes need the shared heap, which the kernel fills on first touch.
  enum class Ranks : std::uint8_t { kThreads, kProcesses };
  // Throws UserError when the system refuses.
  static std::shared_ptr<ShmArea> create(int ranks, Ranks kind);
  // For ranks that share no parent: rank 0 creates it and hands it to the others over an abstract socket of
  // this name (unique on the host). Throws CommError past the deadline, naming the ranks that did not come.
  static std::shared_ptr<ShmArea> rendezvous(const std::string& name, int rank, int ranks,
                                             const WorldOptions& options);
  virtual ~ShmArea() = default;
  virtual int ranks() const = 0;
  // By the thread that will be this rank (kThreads) or in its process, after the fork (kProcesses).
  virtual std::unique_ptr<World> join(int rank, const WorldOptions& options) = 0;
  // What World::abort does, for a supervisor.
  virtual void abort(const std::string& reason) noexcept = 0;
};

// --- mpi: every process that the MPI launcher started. ---

// False: this build has no MPI, and make_mpi_world says so in a UserError.
bool has_mpi();
// kNative leaves the reductions to the library: for comparison, since their bits are its own affair.
enum class MpiCollectives : std::uint8_t { kOwn, kNative };
// Initialises MPI; once a process. The world's end waits for all ranks, and ends MPI; a process that dies, or
// exits without it, ends all ranks of the job. Throws UserError when MPI sees another number of ranks than
// `expected` (0: any).
std::unique_ptr<World> make_mpi_world(int expected, const WorldOptions& options,
                                      MpiCollectives collectives = MpiCollectives::kOwn);

// --- sim: counts calls and bytes; moves nothing. ---
std::unique_ptr<World> make_sim_world(int rank, int size);

}  // namespace meshtrain
