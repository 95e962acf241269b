// The grid of ranks that a config asks for, and its groups.
#pragma once

#include <memory>

#include "comm/device_mesh.h"
#include "comm/world.h"
#include "train/config.h"

namespace meshtrain {

// Ranks that [mesh] asks for: the product of its sizes. 0: mesh.dp leaves it open.
std::int64_t ranks_of(const MeshConfig& mesh);
// The fewest that it can do with: with a mesh.dp of 1 where that is open.
std::int64_t least_ranks_of(const MeshConfig& mesh);

// The config with mesh.dp filled in for `ranks` ranks. Throws UserError when the mesh has another number,
// naming the sizes that would work, and when the batch does not divide.
Config for_ranks(const Config& config, std::int64_t ranks);

WorldOptions world_options(const Config& config);

// The communicators of one rank.
struct RankGroups {
  // config.mesh must be filled in; a collective call.
  RankGroups(const Config& config, World& world);

  DeviceMesh mesh;
  std::unique_ptr<Communicator> control;  // all ranks: small values between steps, by the thread that trains
  std::unique_ptr<Communicator> dp;       // gradients and weights, by jobs of the communication queue
};

}  // namespace meshtrain
