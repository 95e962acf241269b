#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "launch/launch.h"

namespace meshtrain {
namespace {

// The variables of one launcher.
class Variables {
 public:
  // `names`: those that it sets, which say that it started this process.
  Variables(const GetVariable& variable, std::string launcher, std::vector<std::string_view> names)
      : variable_(variable), launcher_(std::move(launcher)), names_(std::move(names)) {}

  bool has(const char* name) const { return variable_(name) != nullptr; }
  std::string text(const char* name) const {
    const char* const value = variable_(name);
    return value != nullptr ? value : "";
  }

  std::int64_t number(const char* name, std::int64_t least,
                      std::int64_t most = std::numeric_limits<int>::max()) const {
    const char* const value = variable_(name);
    if (value == nullptr) {
      throw_user_error("{} says that {} started this process, but {} is not set. {}",
                       fmt::join(set_names(), ", "), launcher_, name, advice());
    }
    const std::string_view text = value;
    std::int64_t result = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc() || end != text.data() + text.size() || result < least || result > most) {
      throw_user_error("{}=\"{}\", which {} sets, should be a whole number from {} on. {}", name, text,
                       launcher_, least, advice());
    }
    return result;
  }
  // -1 where it is not set.
  int optional_number(const char* name, std::int64_t least) const {
    return has(name) ? static_cast<int>(number(name, least)) : -1;
  }

  // Rank `name` of `size`, which `size_name` says.
  int rank_below(const char* name, const char* size_name, int size) const {
    const auto rank = static_cast<int>(number(name, 0));
    if (rank >= size) {
      throw_user_error("{}={} contradicts {}={}: ranks count from 0. {}", name, rank, size_name, size,
                       advice());
    }
    return rank;
  }

  std::string advice() const {
    return fmt::format("Start it with {}, or unset what another run left behind: {}.", launcher_,
                       fmt::join(set_names(), ", "));
  }
  const std::string& launcher() const { return launcher_; }

 private:
  std::vector<std::string_view> set_names() const {
    std::vector<std::string_view> set;
    std::copy_if(names_.begin(), names_.end(), std::back_inserter(set),
                 [this](std::string_view name) { return has(std::string(name).c_str()); });
    return set;
  }

  const GetVariable& variable_;
  std::string launcher_;
  std::vector<std::string_view> names_;
};

struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// `job`: what tells this job from others of this user on this host.
WorkerEnvironment read(const Variables& variables, const Names& names, const std::string& job) {
  WorkerEnvironment result;
  result.launcher = variables.launcher();
  result.size = static_cast<int>(variables.number(names.size, 1));
  result.rank = variables.rank_below(names.rank, names.size, result.size);
  if (names.local_size != nullptr) result.local_size = variables.optional_number(names.local_size, 1);
  if (result.local_size > result.size) {
    throw_user_error("{}={} contradicts {}={}: a host cannot have more ranks than there are. {}",
                     names.local_size, result.local_size, names.size, result.size, variables.advice());
  }
  if (names.local_rank != nullptr && variables.has(names.local_rank)) {
    result.local_rank = result.local_size > 0
                            ? variables.rank_below(names.local_rank, names.local_size, result.local_size)
                            : variables.optional_number(names.local_rank, 0);
  }
  result.rendezvous =
      fmt::format("meshtrain-{}-{}-{:016x}", getuid(), result.launcher, XXH3_64bits(job.data(), job.size()));
  return result;
}

WorkerEnvironment torchrun(const Variables& variables) {
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) variables.number(name, 0);
  const std::string job =
      fmt::format("{} {} {} {}", variables.text("MASTER_ADDR"), variables.text("MASTER_PORT"),
                  variables.text("TORCHELASTIC_RUN_ID"), variables.text("TORCHELASTIC_RESTART_COUNT"));
  return read(variables, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, job);
}

// The ranks of a host are children of one process: of mpirun, or its daemon there.
std::string parent_job() {
  return fmt::format("parent {}", getppid());
}

WorkerEnvironment open_mpi(const Variables& variables) {
  const std::string job = variables.has("PMIX_NAMESPACE") ? variables.text("PMIX_NAMESPACE") : parent_job();
  return read(variables,
              {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"},
              job);
}

WorkerEnvironment hydra(const Variables& variables) {
  return read(variables, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, parent_job());
}

// Item `node` of a list such as "4(x2),3", which stands for 4,4,3; -1 where there is none.
int tasks_of_node(std::string_view list, std::int64_t node) {
  while (!list.empty() && node >= 0) {
    const std::string_view item = list.substr(0, list.find(','));
    int tasks = -1;
    std::int64_t times = 1;
    const char* const end = item.data() + item.size();
    const auto [rest, error] = std::from_chars(item.data(), end, tasks);
    if (error != std::errc() || tasks < 1) return -1;
    if (end - rest > 2 && rest[0] == '(' && rest[1] == 'x') std::from_chars(rest + 2, end, times);
    if (node < times) return tasks;
    node -= times;
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return -1;
}

// Steps that Slurm makes of its own accord, for a batch script or an interactive shell, have the highest
// numbers.
constexpr std::int64_t kFirstSpecialStep = 0xFFFF'FFF0;

bool in_slurm_step(const Variables& variables) {
  return variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_NUM_TASKS") &&
         variables.has("SLURM_STEP_ID") &&
         variables.number("SLURM_STEP_ID", 0, 0xFFFF'FFFF) < kFirstSpecialStep;
}

WorkerEnvironment slurm(const Variables& variables) {
  const std::string job = fmt::format("{}.{}", variables.text("SLURM_JOB_ID"),
                                      variables.number("SLURM_STEP_ID", 0, kFirstSpecialStep));
  WorkerEnvironment result =
      read(variables, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr}, job);
  if (variables.has("SLURM_STEP_TASKS_PER_NODE") && variables.has("SLURM_NODEID")) {
    result.local_size =
        tasks_of_node(variables.text("SLURM_STEP_TASKS_PER_NODE"), variables.number("SLURM_NODEID", 0));
  }
  return result;
}

// RANK and WORLD_SIZE alone, as in the pods of a PyTorchJob: processes of several hosts that expect to be
// connected through MASTER_ADDR. Each would train everything by itself.
void refuse_ranks_that_cannot_meet(const Variables& variables) {
  if (!variables.has("RANK") || !variables.has("WORLD_SIZE")) return;
  if (variables.number("WORLD_SIZE", 1) == 1) return;
  throw_user_error(
      "RANK={} and WORLD_SIZE={} say that this process is one of several ranks, but nothing here connects "
      "them: "
      "ranks of several hosts are connected by MPI. Start them with mpirun or srun (on Kubernetes as an "
      "MPIJob), or on "
      "one host with --ranks or torchrun. To train in this process alone, unset RANK and WORLD_SIZE.",
      variables.text("RANK"), variables.text("WORLD_SIZE"));
}

}  // namespace

std::optional<WorkerEnvironment> worker_environment(const GetVariable& variable) {
  const Variables of_torchrun(variable, "torchrun",
                              {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                               "MASTER_ADDR", "MASTER_PORT"});
  const Variables of_mpirun(
      variable, "mpirun",
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  const Variables of_srun(variable, "srun",
                          {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"});
  // Innermost first. RANK and its like are names that other launchers' scripts set for PyTorch's sake; only
  // torchrun gives a run id.
  if (of_torchrun.has("TORCHELASTIC_RUN_ID")) return torchrun(of_torchrun);
  if (of_mpirun.has("OMPI_COMM_WORLD_RANK") || of_mpirun.has("OMPI_COMM_WORLD_SIZE"))
    return open_mpi(of_mpirun);
  // Slurm's own PMI sets PMI_RANK too.
  const bool step = in_slurm_step(of_srun);
  const bool pmi = of_mpirun.has("PMI_RANK") && of_mpirun.has("PMI_SIZE");
  if (pmi && (of_mpirun.has("MPI_LOCALRANKID") || !step)) return hydra(of_mpirun);
  if (of_torchrun.has("RANK") && of_torchrun.has("WORLD_SIZE") && of_torchrun.has("LOCAL_RANK") &&
      of_torchrun.has("LOCAL_WORLD_SIZE") && of_torchrun.has("MASTER_PORT")) {
    return torchrun(of_torchrun);
  }
  if (step) return slurm(of_srun);
  refuse_ranks_that_cannot_meet(of_torchrun);
  return std::nullopt;
}

std::optional<WorkerEnvironment> worker_environment() {
  return worker_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace meshtrain
