#include "train/mesh.h"

#include "base/error.h"
#include "train/config_validate.h"

namespace meshtrain {
namespace {

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
      dp(mesh.group(world, {"dp"})) {}

}  // namespace meshtrain
