#include "train/run_banner.h"

#include <fmt/format.h>

#include "model/flops.h"
#include "model/spec.h"
#include "telemetry/units.h"
#include "train/evaluation.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

std::string model_text(const Config& config) {
  const ModelSpec& model = config.model;
  const std::string name = config.preset.empty() ? std::string(name_of(model.arch)) : config.preset;
  return fmt::format("{}: {} parameters; {} layers, hidden {}, vocabulary {}", name,
                     grouped(parameter_count(model)), model.layers, model.hidden, grouped(model.vocab));
}

std::string data_text(const RunFacts& facts) {
  const BatchSampler& sampler = facts.data.train();
  return fmt::format("{}: {} tokens, {} of {}", facts.config.data.train, grouped(facts.data.train_tokens()),
                     grouped_count(sampler.samples_per_epoch(), "sequence"), sampler.seq_len());
}

std::string validation_text(const RunFacts& facts) {
  const BatchSampler& sampler = *facts.data.valid();
  const std::int64_t sequences = evaluated_sequences(sampler, facts.config.train.eval_tokens);
  const std::string all = grouped(sampler.samples_per_epoch() * sampler.seq_len());
  if (sequences == sampler.samples_per_epoch()) {
    return fmt::format("{}: all {} tokens", facts.config.data.valid, all);
  }
  return fmt::format("{}: the first {} of {} tokens", facts.config.data.valid,
                     grouped(sequences * sampler.seq_len()), all);
}

std::string epochs_text(const RunFacts& facts, std::int64_t samples) {
  const auto epochs_at = [&](std::int64_t position) {
    return static_cast<double>(position) / static_cast<double>(facts.data.train().samples_per_epoch());
  };
  const std::string end = fmt::format("{:.3g} epochs", epochs_at(facts.position + samples));
  return facts.position == 0 ? end : fmt::format("{:.3g} to {}", epochs_at(facts.position), end);
}

std::string training_text(const RunFacts& facts) {
  const TrainConfig& train = facts.config.train;
  const std::int64_t seq_len = facts.config.data.seq_len;
  if (facts.steps_done >= train.steps) return fmt::format("all {} steps are done", grouped(train.steps));
  const std::int64_t samples = (train.steps - facts.steps_done) * train.global_batch;
  return fmt::format("steps {} to {} of {} tokens each: {} tokens, {}", grouped(facts.steps_done + 1),
                     grouped(train.steps), grouped(train.global_batch * seq_len), grouped(samples * seq_len),
                     epochs_text(facts, samples));
}

std::string mesh_text(const RunFacts& facts) {
  const MeshConfig& mesh = facts.config.mesh;
  std::string axes = fmt::format("dp={}", mesh.dp);
  if (mesh.zero > 0) axes += fmt::format(" zero={}", mesh.zero);
  if (mesh.tp > 1) axes += fmt::format(" tp={}", mesh.tp);
  if (mesh.pp > 1) axes += fmt::format(" pp={} schedule={}", mesh.pp, mesh.schedule);
  if (mesh.virtual_stages > 1) axes += fmt::format(" virtual_stages={}", mesh.virtual_stages);
  const std::int64_t ranks = ranks_of(mesh);
  const std::string connected = ranks > 1 ? fmt::format(", {}", facts.engine) : "";
  return fmt::format("{}: {} x {}{}", axes, format_count(ranks, "rank"), format_count(facts.threads, "thread"),
                     connected);
}

// 16 sequences of 128 tokens = 2 micro-steps x 4 replicas x 2 sequences.
std::string batch_text(const Config& config) {
  const TrainConfig& train = config.train;
  const std::int64_t replicas = config.mesh.dp;
  return fmt::format("{} of {} tokens = {} x {} x micro-batch {}",
                     grouped_count(train.global_batch, "sequence"), config.data.seq_len,
                     format_count(train.global_batch / (train.micro_batch * replicas), "micro-step"),
                     format_count(replicas, "replica"), train.micro_batch);
}

std::string precision_text(const RunFacts& facts) {
  const Config& config = facts.config;
  std::string text(name_of(config.precision.compute));
  if (config.reduction != "fast") text += fmt::format(", reduction {}", config.reduction);
  if (config.recompute != RecomputePolicy::kNone)
    text += fmt::format(", recompute {}", name_of(config.recompute));
  text +=
      fmt::format("; {} of memory{}", format_bytes(facts.bytes), ranks_of(config.mesh) > 1 ? " on rank 0" : "");
  if (!facts.peak.empty()) text += fmt::format("; peak {}", facts.peak);
  return text;
}

}  // namespace

std::vector<std::string> run_banner(const RunFacts& facts) {
  std::vector<std::string> lines;
  const auto add = [&](const char* label, const std::string& text) {
    lines.push_back(fmt::format("{:<11}{}", label, text));
  };
  add("model", model_text(facts.config));
  add("data", data_text(facts));
  if (facts.data.valid() != nullptr) add("validation", validation_text(facts));
  add("training", training_text(facts));
  add("batch", batch_text(facts.config));
  add("mesh", mesh_text(facts));
  add("precision", precision_text(facts));
  add("output", fmt::format("{}, seed {}", facts.config.output.dir, facts.config.train.seed));
  return lines;
}

}  // namespace meshtrain
