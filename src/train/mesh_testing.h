// Tiny models on meshes of thread ranks, as tests of whole states and checkpoints use them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "comm_ranks.h"
#include "train/assembly.h"
#include "train/memory_plan.h"
#include "train/mesh.h"
#include "train/step.h"

namespace meshtrain::testing {

inline constexpr std::int64_t kSeq = 12;
inline constexpr std::int64_t kBatch = 4;

// Four heads, two of keys and values: with tp = 4 two ranks hold each of these. 97 ids divide by nothing.
inline Config config_for(Architecture arch, const MeshConfig& mesh) {
  Config config;
  config.model = {.arch = arch,
                  .layers = 4,
                  .hidden = 24,
                  .heads = 4,
                  .kv_heads = arch == Architecture::kGpt2 ? 4 : 2,
                  .head_dim = 6,
                  .ffn_hidden = 52,
                  .vocab = 97,
                  .context = 16,
                  .tie_embeddings = arch == Architecture::kGpt2};
  config.data.train = "text";  // a checkpoint has its config, which must be a possible one
  config.checkpoint.dir = "checkpoints";
  config.data.seq_len = kSeq;
  config.train.micro_batch = 1;
  config.train.global_batch = kBatch;
  config.precision.compute = DType::kF32;
  config.optimizer.schedule = "constant";
  config.reduction = "tree";
  config.mesh = mesh;
  config.machine.threads = 1;
  return config;
}

inline MeshConfig mesh_of(std::int64_t dp, std::int64_t zero, std::int64_t tp, std::int64_t pp) {
  MeshConfig mesh;
  mesh.dp = dp;
  mesh.zero = zero;
  mesh.tp = tp;
  mesh.pp = pp;
  return mesh;
}

inline std::string name_of_mesh(const MeshConfig& mesh) {
  return fmt::format("dp={} zero={} tp={} pp={} {}", mesh.dp, mesh.zero, mesh.tp, mesh.pp, mesh.schedule);
}

inline std::vector<MeshConfig> several_ranks() {
  std::vector<MeshConfig> result = {mesh_of(2, 0, 1, 1), mesh_of(2, 3, 1, 1), mesh_of(1, 0, 2, 1),
                                    mesh_of(1, 0, 1, 2), mesh_of(1, 0, 4, 1), mesh_of(1, 0, 4, 2),
                                    mesh_of(2, 0, 2, 2), mesh_of(2, 1, 2, 2), mesh_of(2, 3, 2, 2),
                                    mesh_of(4, 2, 1, 2), mesh_of(1, 0, 1, 6)};
  MeshConfig chunks = mesh_of(1, 0, 2, 2);
  chunks.schedule = "interleaved";
  chunks.virtual_stages = 2;
  result.push_back(chunks);
  return result;
}

inline std::vector<std::int32_t> samples(const Assembly& assembly, std::string_view what) {
  const RandomStream random(7, what);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < assembly.micro_steps(); ++i) {
    for (std::int64_t j = 0; j < kSeq; ++j) {
      const std::int64_t token = assembly.micro_batch_index(i) * kSeq + j;
      ids.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(token)) % 97));
    }
  }
  return ids;
}

inline double train(Assembly& assembly, std::int64_t update) {
  const auto tokens = samples(assembly, "tokens");
  const auto targets = samples(assembly, "targets");
  return train_step(assembly, {.tokens = tokens, .targets = targets}, 1e-3, update).loss;
}

// Runs `body(assembly)` on every rank of a mesh.
template <class Body>
void on_mesh(const Config& config, const Body& body) {
  const auto ranks = static_cast<int>(ranks_of(config.mesh));
  const auto failures = run_threads(ranks, {}, [&](World& world) {
    const std::unique_ptr<Device> device = world.make_device();
    Assembly assembly(config, *device, world, measure_arenas(config, world.rank()));
    body(assembly);
    return std::vector<std::string>{};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << name_of_mesh(config.mesh) << ": " << failure;
  }
}

}  // namespace meshtrain::testing
