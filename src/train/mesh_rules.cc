#include "train/mesh_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "pipeline/schedule.h"
#include "pipeline/split.h"
#include "pipeline/timeline.h"
#include "train/config_limits.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

void check_ranges(const MeshConfig& mesh) {
  require_between("mesh.dp", mesh.dp, 0, kMostRanks);
  for (const auto& [key, value] : {std::pair{"mesh.tp", mesh.tp}, std::pair{"mesh.pp", mesh.pp},
                                   std::pair{"mesh.virtual_stages", mesh.virtual_stages}}) {
    require_between(key, value, 1, kMostRanks);
  }
  for (const auto& [key, value] : {std::pair{"mesh.cp", mesh.cp}, std::pair{"mesh.ep", mesh.ep}}) {
    if (value != 1) throw_user_error("{} = {} is not in this version: set it to 1.", key, value);
  }
  require_between("mesh.zero", mesh.zero, 0, 3);
  require_finite_from("mesh.bucket_mb", mesh.bucket_mb, 0.0);
  require_between("mesh.prefetch", mesh.prefetch, 0, 1 << 20);
  if (!(mesh.deadline >= 0.001 && mesh.deadline <= 1e9)) {
    throw_user_error("mesh.deadline = {} is not possible: it must be between 0.001 and 1e9 seconds.",
                     mesh.deadline);
  }
}

// --- Tensor parallelism ------------------------------------------------------------------------------

bool splits_layers(const ModelSpec& model, std::int64_t tp) {
  return model.heads % tp == 0 && model.ffn_hidden % tp == 0 &&
         (model.kv_heads % tp == 0 || tp % model.kv_heads == 0);
}

std::string why_not(const ModelSpec& model, std::int64_t tp) {
  if (model.heads % tp != 0) {
    return fmt::format("does not divide model.heads = {}, and a rank computes whole heads", model.heads);
  }
  if (model.ffn_hidden % tp != 0) {
    return fmt::format("does not divide model.ffn_hidden = {}, the inner width that ranks share",
                       model.ffn_hidden);
  }
  return fmt::format(
      "is neither a divisor nor a multiple of model.kv_heads = {}, and a rank has whole key-value heads",
      model.kv_heads);
}

void check_tensor(const Config& config) {
  const std::int64_t tp = config.mesh.tp;
  if (splits_layers(config.model, tp)) return;
  std::vector<std::int64_t> possible;
  std::vector<std::int64_t> without_sequences;  // not with sequence parallelism, for data.seq_len
  for (const std::int64_t value : divisors(config.model.heads)) {
    if (!splits_layers(config.model, value)) continue;
    const bool whole = !config.mesh.sequence_parallel || config.data.seq_len % value == 0;
    (whole ? possible : without_sequences).push_back(value);
  }
  const std::string others = without_sequences.empty()
                                 ? ""
                                 : fmt::format("; with mesh.sequence_parallel = false also with {}",
                                               fmt::join(without_sequences, ", "));
  throw_user_error("mesh.tp = {} {}. Use mesh.tp = {}; this model works with {}{}.", tp,
                   why_not(config.model, tp), values_around(possible, tp), fmt::join(possible, ", "), others);
}

void check_sequences(const Config& config) {
  const std::int64_t tp = config.mesh.tp;
  const std::int64_t seq_len = config.data.seq_len;
  if (!config.mesh.sequence_parallel || seq_len % tp == 0) return;
  std::vector<std::int64_t> possible;
  const std::int64_t below = seq_len / tp * tp;
  if (below > 0) possible.push_back(below);
  if (below + tp <= config.model.context) possible.push_back(below + tp);
  throw_user_error(
      "data.seq_len = {} is not a multiple of mesh.tp = {}, and mesh.sequence_parallel = true shares sequences "
      "out evenly. Use {}mesh.sequence_parallel = false.",
      seq_len, tp,
      possible.empty() ? "" : fmt::format("a data.seq_len of {}, or ", fmt::join(possible, " or ")));
}

// --- Pipeline parallelism ----------------------------------------------------------------------------

void check_chunks(const MeshConfig& mesh, const PipelineSchedule& schedule) {
  if (mesh.virtual_stages == 1) return;
  if (mesh.pp == 1) {
    throw_user_error(
        "mesh.virtual_stages = {} with mesh.pp = 1: one stage has no others to take turns with. Use "
        "mesh.virtual_stages = 1, or more stages.",
        mesh.virtual_stages);
  }
  if (!schedule.takes_chunks) {
    throw_user_error(
        "mesh.virtual_stages = {} with mesh.schedule = \"{}\", which runs one piece a stage. Use "
        "mesh.virtual_stages = 1, or mesh.schedule = \"interleaved\".",
        mesh.virtual_stages, mesh.schedule);
  }
}

void check_pieces(const Config& config, const PipelineSchedule& schedule) {
  const MeshConfig& mesh = config.mesh;
  const std::int64_t most = config.model.layers + 2;
  if (piece_count(mesh) <= most) return;
  std::vector<std::string> possible;
  const bool takes_chunks = schedule.takes_chunks && mesh.pp > 1;
  const std::int64_t stages = takes_chunks || mesh.virtual_stages == 1 ? most / mesh.virtual_stages : 1;
  const std::int64_t chunks = takes_chunks ? most / mesh.pp : std::min<std::int64_t>(most / mesh.pp, 1);
  if (stages > 1) possible.push_back(fmt::format("mesh.pp = {}", stages));
  if (chunks > 0) possible.push_back(fmt::format("mesh.virtual_stages = {}", chunks));
  if (possible.empty()) possible.push_back(fmt::format("mesh.pp = {} and mesh.virtual_stages = 1", most));
  throw_user_error(
      "mesh.pp = {} x virtual_stages = {} makes {} pieces, but model.layers = {} is enough for {} at most: one "
      "begins with the embedding, one ends with the head, and each between has a block. Use at most {}{}.",
      mesh.pp, mesh.virtual_stages, piece_count(mesh), config.model.layers, most, fmt::join(possible, ", or "),
      mesh.stage_layers.empty() ? "" : ", without mesh.stage_layers");
}

// What is wrong with mesh.stage_layers; "" where it fits.
std::string problem_of_split(const Config& config) {
  const std::vector<std::int64_t>& blocks = config.mesh.stage_layers;
  const auto count = static_cast<std::int64_t>(blocks.size());
  if (count != piece_count(config.mesh)) {
    return fmt::format("has {} number{}, but mesh.pp = {} x virtual_stages = {} makes {} piece{}", count,
                       count == 1 ? "" : "s", config.mesh.pp, config.mesh.virtual_stages,
                       piece_count(config.mesh), piece_count(config.mesh) == 1 ? "" : "s");
  }
  for (std::int64_t piece = 0; piece < count; ++piece) {
    const std::int64_t value = blocks[static_cast<std::size_t>(piece)];
    const bool at_an_end = piece == 0 || piece == count - 1;
    if (value < (at_an_end ? 0 : 1) || value > config.model.layers) {
      return fmt::format("gives piece {} of {} {} blocks, which must be between {} and {}", piece + 1, count,
                         value, at_an_end ? 0 : 1, config.model.layers);
    }
  }
  const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (sum == config.model.layers) return "";
  return fmt::format("adds up to {} blocks, but model.layers = {}", sum, config.model.layers);
}

void check_split(const Config& config) {
  if (config.mesh.stage_layers.empty()) return;
  const std::string problem = problem_of_split(config);
  if (problem.empty()) return;
  throw_user_error("mesh.stage_layers {}. Leave it out, or use a split like the balanced one, [{}].", problem,
                   to_string(balanced_stage_layers(config)));
}

// Every data-parallel rank takes micro-batches of its own, as many as the others.
void check_batch(const Config& config) {
  const std::int64_t dp = config.mesh.dp;
  const std::int64_t micro_batches = micro_batches_of(config);
  if (dp == 0 || micro_batches % dp == 0) return;
  const std::int64_t below = micro_batches / dp * dp * config.train.micro_batch;
  throw_user_error(
      "train.global_batch = {} in micro-batches of train.micro_batch = {} makes {}, which mesh.dp = {} ranks "
      "cannot share evenly. Use mesh.dp = {}, or a global_batch of {}{}.",
      config.train.global_batch, config.train.micro_batch, micro_batches, dp,
      divisors_around(micro_batches, dp), below > 0 ? fmt::format("{} or ", below) : "",
      below + dp * config.train.micro_batch);
}

// The whole step, up to a number of micro-batches beyond which it only repeats itself.
void check_order(const Config& config, const PipelineSchedule& schedule) {
  const std::int64_t stages = config.mesh.pp;
  if (stages == 1) return;
  const std::int64_t all = micro_batches_of(config) / std::max<std::int64_t>(config.mesh.dp, 1);
  const std::int64_t enough = 4096 / stages * stages + 3 * stages;
  const std::int64_t shown = std::min(all, enough + all % stages);
  check_schedule(schedule, {.stages = static_cast<int>(stages),
                            .chunks = static_cast<int>(config.mesh.virtual_stages),
                            .micro_batches = shown});
}

void check_rank_count(const Config& config) {
  const MeshConfig& mesh = config.mesh;
  const std::int64_t dp = std::max<std::int64_t>(mesh.dp, 1);
  const std::int64_t others = mesh.tp * mesh.pp;
  if (dp * others <= kMostRanks) return;
  const std::vector<std::int64_t> possible = divisors(micro_batches_of(config));
  const std::string fewer =
      others <= kMostRanks
          ? fmt::format("mesh.dp = {}",
                        *(std::upper_bound(possible.begin(), possible.end(), kMostRanks / others) - 1))
          : fmt::format("mesh.dp = 1 and mesh.pp = {}", kMostRanks / mesh.tp);
  throw_user_error(
      "mesh.dp = {} x tp = {} x pp = {} makes {} ranks, more than the {} that a run can have. Use at most {}.",
      dp, mesh.tp, mesh.pp, dp * others, kMostRanks, fewer);
}

}  // namespace

std::int64_t micro_batches_of(const Config& config) {
  return config.train.global_batch / config.train.micro_batch;
}

void check_mesh(const Config& config) {
  check_ranges(config.mesh);
  check_tensor(config);
  check_sequences(config);
  const PipelineSchedule& schedule = schedule_of(config.mesh);
  check_pieces(config, schedule);
  check_chunks(config.mesh, schedule);
  check_split(config);
  check_rank_count(config);
  check_batch(config);
  check_order(config, schedule);
}

}  // namespace meshtrain
