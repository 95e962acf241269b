#include "train/mesh.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "train/config_validate.h"

namespace meshtrain {
namespace {

std::unique_ptr<Communicator> group_along(const DeviceMesh& mesh, World& world, const char* axis,
                                          const char* name) {
  return world.group(name, mesh.ranks_along({axis}));
}

std::int64_t ranks_beside_dp(const MeshConfig& mesh) {
  return mesh.tp * mesh.cp * mesh.pp;
}

}  // namespace

std::int64_t ranks_of(const MeshConfig& mesh) {
  return mesh.dp * ranks_beside_dp(mesh);
}

Config for_ranks(const Config& config, std::int64_t ranks) {
  Config result = config;
  const std::int64_t others = ranks_beside_dp(config.mesh);
  const std::int64_t dp = ranks / others;
  if (config.mesh.dp == 0 && dp * others == ranks) result.mesh.dp = dp;
  if (ranks_of(result.mesh) != ranks) {
    const std::string possible = dp * others == ranks && dp > 0
                                     ? fmt::format("mesh.dp = {} (or leave it out)", dp)
                                     : fmt::format("a number of ranks that is a multiple of {}", others);
    throw_user_error(
        "mesh.dp = {} x tp = {} x cp = {} x pp = {} makes {} ranks, but there {} {}. Start {} ranks (--ranks "
        "{}), or "
        "set {}.",
        config.mesh.dp, config.mesh.tp, config.mesh.cp, config.mesh.pp, ranks_of(config.mesh),
        ranks == 1 ? "is" : "are", ranks, ranks_of(config.mesh), ranks_of(config.mesh), possible);
  }
  validate_but_vocabulary(result);
  return result;
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

CommStats RankGroups::sent() const {
  CommStats total;
  for (const Communicator* group : {control.get(), replicas.get(), tensor.get(), tensor_background.get(),
                                    dp.get(), copies.get(), head_copies.get(), tied.get()}) {
    if (group != nullptr) total = total + group->stats();
  }
  return total;
}

}  // namespace meshtrain
