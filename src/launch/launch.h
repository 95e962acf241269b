// Ranks: started on this host and watched, or joined where another launcher started them (docs/clusters.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"

namespace meshtrain {

// What a rank runs. `threads`: how many it computes on where the config does not say (OMP_NUM_THREADS, else its
// share of the cores). Throws what went wrong with its rank.
using RankBody = std::function<void(World& world, int threads)>;

// --- Ranks of this host, over shm. ---

enum class RanksAs : std::uint8_t { kProcesses, kThreads };

struct LaunchOptions {
  int ranks = 1;
  RanksAs ranks_as = RanksAs::kProcesses;
  WorldOptions world = {};
};

// Runs `body` on every rank and returns when all have succeeded. Otherwise the others are stopped, and what the
// first failed rank threw is thrown here: UserError and RunError as such, anything else as std::runtime_error.
// CommErrors of ranks that lost another are never first while there is another cause. One rank runs in
// place; threads and processes follow the same rules, but:
//
// Processes are forked, so no other thread may exist yet. They leave with the supervisor, however it ends. Rank
// 0 has its standard streams; what the others write appears on its stderr as lines "[rank 3] …". SIGINT,
// SIGTERM and SIGUSR1 go to every rank, and a rank handles them as the handlers of the caller say; where they
// end the ranks, this process ends by the same signal. A rank that a signal killed, or that left with exit(),
// is a RunError.
//
// Cores: each rank, process or thread, is bound to its share of the cores of this process, unless there are
// fewer cores than ranks.
void run_local_ranks(const LaunchOptions& options, const RankBody& body);

// --- Ranks that another launcher started. ---

// What that launcher says about this process.
struct WorkerEnvironment {
  std::string launcher;  // "torchrun", "mpirun", "srun"
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // -1: not said
  int local_size = -1;
  std::string rendezvous;  // a name that the ranks of this job share, and no other job on this host
};

// `variable` stands for getenv: null where there is none. Empty where no launcher started this process. Throws
// UserError naming the variable whose value is malformed or contradicts another. A launcher inside another
// wins.
using GetVariable = std::function<const char*(const char* name)>;
std::optional<WorkerEnvironment> worker_environment(const GetVariable& variable);
std::optional<WorkerEnvironment> worker_environment();  // of this process

// `engine`: "auto", "shm" or "mpi". Throws UserError for another, and for one that cannot connect these ranks.
std::unique_ptr<World> join_world(const WorkerEnvironment& environment, const std::string& engine,
                                  const WorldOptions& options);

// --- Both. ---

// What that launcher says, where it made this process one rank of several; empty where ranks are local. A
// launcher that started one process counts as none, unless the engine is "mpi". Throws UserError for an engine
// that there is not, or that local ranks cannot have; `asked`: how many there would be.
std::optional<WorkerEnvironment> launcher_of_ranks(const std::string& engine, std::optional<int> asked);

// Runs `body` as the rank that a launcher made of this process, its cores shared out as above, or on local
// ranks where there is none. `asked`: the ranks of the command line, if any; with a launcher they must be as
// many as it started.
void run_ranks(std::optional<int> asked, RanksAs ranks_as, const std::string& engine,
               const WorldOptions& options, const RankBody& body);

}  // namespace meshtrain
