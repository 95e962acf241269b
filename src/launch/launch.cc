#include "launch/launch.h"

#include <fmt/format.h>

#include <array>
#include <exception>

#include "base/error.h"
#include "base/nearest.h"
#include "comm/engines.h"
#include "launch/cores.h"
#include "launch/failures.h"
#include "launch/supervisor.h"
#include "launch/thread_ranks.h"
#include "train/threads.h"

namespace meshtrain {
namespace {

void check_engine(const std::string& engine) {
  static const std::array<std::string, 3> kEngines = {"auto", "shm", "mpi"};
  for (const std::string& known : kEngines) {
    if (engine == known) return;
  }
  throw_user_error("mesh.engine = \"{}\": there is no such engine{}. Engines: auto, shm, mpi.", engine,
                   nearest_hint(engine, kEngines));
}

bool on_one_host(const WorkerEnvironment& environment) {
  return environment.local_size == environment.size;
}

std::string engine_for(const WorkerEnvironment& environment, const std::string& asked) {
  if (asked != "auto") return asked;
  if (environment.launcher == "torchrun") return "shm";
  return has_mpi() || !on_one_host(environment) ? "mpi" : "shm";
}

[[noreturn]] void throw_several_hosts(const WorkerEnvironment& environment) {
  if (environment.launcher == "torchrun") {
    throw_user_error(
        "torchrun started {} ranks, {} of them on this host: ranks of several hosts are connected by MPI, "
        "which torchrun "
        "does not start. Use `mpirun -n {} --hostfile HOSTS meshtrain train CONFIG`, or srun under Slurm.",
        environment.size, environment.local_size, environment.size);
  }
  const std::string here = environment.local_size > 0 ? fmt::format("{} of them", environment.local_size)
                                                      : std::string("it does not say how many of them");
  throw_user_error(
      "mesh.engine = \"shm\": {} started {} ranks, {} on this host, and shm connects ranks of one host. Set "
      "mesh.engine to \"mpi\", or leave it out.",
      environment.launcher, environment.size, here);
}

void run_as_worker(const WorkerEnvironment& environment, const std::string& engine, const WorldOptions& options,
                   const RankBody& body) {
  const std::unique_ptr<World> world = join_world(environment, engine, options);
  try {
    body(*world, take_cores(*world));
  } catch (...) {
    world->abort(reason_for_others(describe_failure(environment.rank, std::current_exception())));
    throw;
  }
}

}  // namespace

void run_local_ranks(const LaunchOptions& options, const RankBody& body) {
  check(options.ranks >= 1, "at least one rank");
  if (options.ranks == 1) {
    const std::unique_ptr<World> world = make_single_world();
    return body(*world, resolve_threads(0));
  }
  return options.ranks_as == RanksAs::kThreads ? run_thread_ranks(options, body)
                                               : run_process_ranks(options, body);
}

std::unique_ptr<World> join_world(const WorkerEnvironment& environment, const std::string& engine,
                                  const WorldOptions& options) {
  check_engine(engine);
  if (engine_for(environment, engine) == "shm") {
    if (!on_one_host(environment)) throw_several_hosts(environment);
    return ShmArea::rendezvous(environment.rendezvous, environment.rank, environment.size, options)
        ->join(environment.rank, options);
  }
  if (environment.launcher == "torchrun") {
    throw_user_error(
        "mesh.engine = \"mpi\": torchrun started this process, and it does not start MPI. Use `mpirun -n {} "
        "meshtrain "
        "train CONFIG`, or leave mesh.engine out.",
        environment.size);
  }
  return make_mpi_world(environment.size, options);
}

std::optional<WorkerEnvironment> launcher_of_ranks(const std::string& engine, std::optional<int> asked) {
  check_engine(engine);
  std::optional<WorkerEnvironment> environment = worker_environment();
  if (environment && (environment->size > 1 || engine == "mpi")) return environment;
  if (engine == "mpi") {
    throw_user_error(
        "mesh.engine = \"mpi\": no MPI launcher started this process. Use `mpirun -n {} meshtrain train "
        "CONFIG`, or leave "
        "mesh.engine out and give --ranks.",
        asked.value_or(2));
  }
  return std::nullopt;
}

void run_ranks(std::optional<int> asked, RanksAs ranks_as, const std::string& engine,
               const WorldOptions& options, const RankBody& body) {
  if (const std::optional<WorkerEnvironment> environment = launcher_of_ranks(engine, asked)) {
    if (asked && *asked != environment->size) {
      throw_user_error("--ranks {}: {} started {} as ranks of one run; leave --ranks out, or start {} with it.",
                       *asked, environment->launcher, environment->size, *asked);
    }
    if (ranks_as == RanksAs::kThreads) {
      throw_user_error("--ranks-as threads: {} started the ranks as processes; leave --ranks-as out.",
                       environment->launcher);
    }
    return run_as_worker(*environment, engine, options, body);
  }
  run_local_ranks({.ranks = asked.value_or(1), .ranks_as = ranks_as, .world = options}, body);
}

}  // namespace meshtrain
