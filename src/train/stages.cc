#include "train/stages.h"

#include "base/error.h"
#include "model/flops.h"
#include "pipeline/split.h"
#include "train/mesh_rules.h"

namespace meshtrain {

std::int64_t piece_count(const MeshConfig& mesh) {
  return mesh.pp * mesh.virtual_stages;
}

const PipelineSchedule& schedule_of(const MeshConfig& mesh) {
  const PipelineSchedule* schedule = find_schedule(mesh.schedule);
  check(schedule != nullptr, "mesh.schedule is one of the names that its key takes");
  return mesh.pp == 1 ? *find_schedule("1f1b") : *schedule;
}

PipelineShape pipeline_of(const Config& config) {
  return {.stages = static_cast<int>(config.mesh.pp),
          .chunks = static_cast<int>(config.mesh.virtual_stages),
          .micro_batches = micro_batches_of(config) / config.mesh.dp};
}

Config with_micro_steps(Config config, std::int64_t steps) {
  config.train.global_batch = config.train.micro_batch * config.mesh.dp * steps;
  return config;
}

std::vector<std::int64_t> balanced_stage_layers(const Config& config) {
  const LayerFlops flops = layer_flops_per_token(config.model, config.data.seq_len);
  const LayerCosts costs = {.embedding = 6.0 * static_cast<double>(config.model.hidden),
                            .block = static_cast<double>(flops.block),
                            .head = static_cast<double>(flops.head)};
  return balanced_split(config.model.layers, static_cast<int>(config.mesh.pp),
                        static_cast<int>(config.mesh.virtual_stages), costs);
}

std::vector<ModelPiece> pieces_of(const Config& config) {
  const std::vector<std::int64_t> blocks =
      config.mesh.stage_layers.empty() ? balanced_stage_layers(config) : config.mesh.stage_layers;
  check(static_cast<std::int64_t>(blocks.size()) == piece_count(config.mesh), "a split for another mesh");
  std::vector<ModelPiece> pieces;
  pieces.reserve(blocks.size());
  std::int64_t first = 0;
  for (const std::int64_t count : blocks) {
    pieces.push_back({.first_block = first, .blocks = count, .embedding = pieces.empty(), .head = false});
    first += count;
  }
  pieces.back().head = true;
  check(first == config.model.layers, "a split of another model");
  return pieces;
}

std::vector<ModelPiece> pieces_of_stage(const Config& config, std::int64_t stage) {
  const std::vector<ModelPiece> all = pieces_of(config);
  std::vector<ModelPiece> own;
  for (auto piece = static_cast<std::size_t>(stage); piece < all.size();
       piece += static_cast<std::size_t>(config.mesh.pp)) {
    own.push_back(all[piece]);
  }
  return own;
}

}  // namespace meshtrain
