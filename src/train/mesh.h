// The grid of ranks that a config asks for, and its groups.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "comm/device_mesh.h"
#include "comm/world.h"
#include "train/config.h"

namespace meshtrain {

class TraceTrack;

// Ranks that [mesh] asks for: the product of its sizes. 0: mesh.dp leaves it open.
std::int64_t ranks_of(const MeshConfig& mesh);
// The fewest that it can do with: with a mesh.dp of 1 where that is open.
std::int64_t least_ranks_of(const MeshConfig& mesh);

// The config with mesh.dp filled in for `ranks` ranks. Throws UserError when the mesh has another number,
// naming the sizes that would work, and when the batch does not divide.
Config for_ranks(const Config& config, std::int64_t ranks);

// The config with the largest mesh.dp, at most its own, that needs no more than `most` ranks and works with its
// batch; nothing when a copy of the model takes more. config.mesh.dp must be filled in.
std::optional<Config> for_ranks_at_most(const Config& config, std::int64_t most);

// The rank at these coordinates: tp is innermost, pp outermost. The mesh must be filled in.
std::int64_t rank_at(const MeshConfig& mesh, std::int64_t tp, std::int64_t dp, std::int64_t pp);

WorldOptions world_options(const Config& config);

// The communicators of one rank. Those of the training thread, and those that only jobs of a queue use.
struct RankGroups {
  // config.mesh must be filled in; a collective call.
  RankGroups(const Config& config, World& world);

  // Place of this rank along an axis ("tp", "dp", "pp").
  std::int64_t place(std::string_view axis) const { return mesh.coordinate(axis); }
  // Once nothing is under way, checkpoints included.
  CommStats sent() const;
  // Tracks of the training thread and of the two queues; null: none.
  void set_trace(TraceTrack* compute, TraceTrack* layers, TraceTrack* gradients);

  DeviceMesh mesh;
  // --- By the training thread. ---
  std::unique_ptr<Communicator> control;   // all ranks: small values between steps
  std::unique_ptr<Communicator> replicas;  // ranks along dp, likewise
  std::unique_ptr<Communicator> tensor;    // ranks along tp: sums within layers
  // --- By whoever writes checkpoints. ---
  std::unique_ptr<Communicator> checkpoint;  // all ranks
  // --- By jobs of the queue of layers. ---
  std::unique_ptr<Communicator> tensor_background;
  // --- By jobs of the queue of gradients. ---
  std::unique_ptr<Communicator> dp;      // gradients and weights
  std::unique_ptr<Communicator> copies;  // ranks along tp: gradients of what all of them hold
  // Ranks that hold the same key and value heads, and the first and last stage where they share a table; or
  // null.
  std::unique_ptr<Communicator> head_copies;
  std::unique_ptr<Communicator> tied;
};

}  // namespace meshtrain
