#include "train/mesh.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "train/config_validate.h"
#include "train/mesh_rules.h"

namespace meshtrain {
namespace {

std::unique_ptr<Communicator> group_along(const DeviceMesh& mesh, World& world, const char* axis,
                                          const char* name) {
  return world.group(name, mesh.ranks_along({axis}));
}

std::int64_t ranks_beside_dp(const MeshConfig& mesh) {
  return mesh.tp * mesh.cp * mesh.pp;
}

std::string sizes_beside_dp(const MeshConfig& mesh) {
  return fmt::format("tp = {} x cp = {} x pp = {}", mesh.tp, mesh.cp, mesh.pp);
}

// "4 or 8": the numbers of ranks next to `ranks` that hold whole copies of the model and share its batch
// evenly.
std::string ranks_that_work(const Config& config, std::int64_t ranks) {
  std::vector<std::int64_t> possible = divisors(micro_batches_of(config));
  for (std::int64_t& count : possible) count *= ranks_beside_dp(config.mesh);
  return values_around(possible, ranks);
}

[[noreturn]] void throw_not_whole_copies(const Config& config, std::int64_t ranks) {
  throw_user_error(
      "mesh.{}: a copy of the model takes {} ranks, and {} {} no multiple of that. Start {} ranks (--ranks), "
      "or "
      "change one of these sizes.",
      sizes_beside_dp(config.mesh), ranks_beside_dp(config.mesh), ranks, ranks == 1 ? "is" : "are",
      ranks_that_work(config, ranks));
}

[[noreturn]] void throw_other_ranks(const Config& config, std::int64_t ranks) {
  const std::int64_t others = ranks_beside_dp(config.mesh);
  const std::int64_t asked = ranks_of(config.mesh);
  std::string also;
  if (ranks % others == 0 && micro_batches_of(config) % (ranks / others) == 0) {
    also = fmt::format(", or set mesh.dp = {} (or leave it out)", ranks / others);
  } else if (const std::string possible = ranks_that_work(config, ranks);
             possible != fmt::format("{}", asked)) {
    also = fmt::format(", or leave mesh.dp out and start {}", possible);
  }
  throw_user_error("mesh.dp = {} x {} makes {} ranks, but there {} {}. Start {} ranks (--ranks {}){}.",
                   config.mesh.dp, sizes_beside_dp(config.mesh), asked, ranks == 1 ? "is" : "are", ranks, asked,
                   asked, also);
}

}  // namespace

std::int64_t ranks_of(const MeshConfig& mesh) {
  return mesh.dp * ranks_beside_dp(mesh);
}

std::int64_t least_ranks_of(const MeshConfig& mesh) {
  return std::max<std::int64_t>(mesh.dp, 1) * ranks_beside_dp(mesh);
}

Config for_ranks(const Config& config, std::int64_t ranks) {
  Config result = config;
  const std::int64_t others = ranks_beside_dp(config.mesh);
  if (config.mesh.dp == 0) {
    if (ranks % others != 0) throw_not_whole_copies(config, ranks);
    result.mesh.dp = ranks / others;
  }
  if (ranks_of(result.mesh) != ranks) throw_other_ranks(config, ranks);
  validate_but_vocabulary(result);
  return result;
}

std::optional<Config> for_ranks_at_most(const Config& config, std::int64_t most) {
  Config fewer = config;
  fewer.mesh.dp = std::min(config.mesh.dp, most / ranks_beside_dp(config.mesh));
  for (; fewer.mesh.dp > 0; --fewer.mesh.dp) {
    try {
      validate_but_vocabulary(fewer);
      return fewer;
    } catch (const UserError&) {  // the next smaller one
    }
  }
  return std::nullopt;
}

std::int64_t rank_at(const MeshConfig& mesh, std::int64_t tp, std::int64_t dp, std::int64_t pp) {
  return tp + mesh.tp * mesh.cp * (dp + mesh.dp * pp);
}

WorldOptions world_options(const Config& config) {
  return {.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(config.mesh.deadline * 1e3))};
}

RankGroups::RankGroups(const Config& config, World& world)
    : mesh({{"tp", config.mesh.tp}, {"cp", config.mesh.cp}, {"dp", config.mesh.dp}, {"pp", config.mesh.pp}},
           world.rank(), world.size()),
      control(world.everyone("control")),
      replicas(group_along(mesh, world, "dp", "replicas")),
      tensor(group_along(mesh, world, "tp", "tp")),
      checkpoint(world.everyone("checkpoint")),
      tensor_background(group_along(mesh, world, "tp", "tp background")),
      dp(group_along(mesh, world, "dp", "dp")),
      copies(group_along(mesh, world, "tp", "tp copies")) {
  const std::int64_t shared = config.mesh.tp / std::min(config.mesh.tp, config.model.kv_heads);
  if (shared > 1 && shared < config.mesh.tp) {
    const std::vector<int> all = mesh.ranks_along({"tp"});
    const auto begin = all.begin() + place("tp") / shared * shared;
    head_copies = world.group("kv heads", {begin, begin + shared});
  }
  const std::int64_t stages = config.mesh.pp;
  if (config.model.tie_embeddings && stages > 1 && (place("pp") == 0 || place("pp") == stages - 1)) {
    const std::vector<int> all = mesh.ranks_along({"pp"});
    tied = world.group("tied", {all.front(), all.back()});
  }
}

void RankGroups::set_trace(TraceTrack* compute, TraceTrack* layers, TraceTrack* gradients) {
  for (Communicator* group : {control.get(), replicas.get(), tensor.get()}) group->set_trace(compute);
  tensor_background->set_trace(layers);
  for (Communicator* group : {dp.get(), copies.get(), head_copies.get(), tied.get()}) {
    if (group != nullptr) group->set_trace(gradients);
  }
}

CommStats RankGroups::sent() const {
  CommStats total;
  for (const Communicator* group :
       {control.get(), replicas.get(), tensor.get(), checkpoint.get(), tensor_background.get(), dp.get(),
        copies.get(), head_copies.get(), tied.get()}) {
    if (group != nullptr) total = total + group->stats();
  }
  return total;
}

}  // namespace meshtrain
