#include "train/config_defaults.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "train/config_fields.h"

namespace meshtrain {
namespace {

std::int64_t default_ffn_hidden(const ModelSpec& spec) {
  if (spec.arch == Architecture::kGpt2) return 4 * spec.hidden;
  return (8 * spec.hidden / 3 + (8 * spec.hidden % 3 != 0 ? 1 : 0) + 63) / 64 * 64;
}

std::int64_t default_head_dim(const ModelSpec& spec) {
  return spec.heads > 0 && spec.hidden % spec.heads == 0 ? spec.hidden / spec.heads : 0;
}

// Whether a derived size is to be filled in: there is no preset, or the preset's own value follows the rule
// and so goes on following it when the sizes that it depends on are changed.
bool follows(const Config& config, std::int64_t ModelSpec::*member, std::int64_t (*rule)(const ModelSpec&)) {
  if (config.preset.empty()) return true;
  const ModelSpec& shape = preset(config.preset);
  return shape.*member == rule(shape);
}

void derive_model(Config& config, const SaidKey& said) {
  if (!config.from.empty()) return;  // every size was read there or said
  ModelSpec& spec = config.model;
  if (config.preset.empty()) {
    for (const std::string_view key : {"model.layers", "model.hidden", "model.heads"}) {
      if (!said(key)) {
        throw_user_error(
            "{} is missing: a model needs model.layers, model.hidden and model.heads, or a model.preset, for "
            "example \"llama-small\".",
            key);
      }
    }
    if (!said("model.tie_embeddings")) spec.tie_embeddings = spec.arch == Architecture::kGpt2;
  }
  constexpr std::int64_t kSane = std::int64_t{1} << 32;  // validate() refuses what is beyond
  if (spec.hidden < 0 || spec.hidden > kSane) return;
  const auto all_heads = [](const ModelSpec& shape) { return shape.heads; };
  const std::pair<std::string_view, std::pair<std::int64_t ModelSpec::*, std::int64_t (*)(const ModelSpec&)>>
      derived[] = {
          {"model.kv_heads", {&ModelSpec::kv_heads, all_heads}},
          {"model.head_dim", {&ModelSpec::head_dim, default_head_dim}},
          {"model.ffn_hidden", {&ModelSpec::ffn_hidden, default_ffn_hidden}},
      };
  for (const auto& [key, how] : derived) {
    if (!said(key) && follows(config, how.first, how.second)) spec.*(how.first) = how.second(spec);
  }
}

void refuse_keys_of_other_architecture(const Config& config, const SaidKey& said) {
  if (!config.preset.empty() && preset(config.preset).arch != config.model.arch) {
    throw_user_error(
        "model.arch = \"{}\" contradicts model.preset = \"{}\", which is a {}; leave one of them out.",
        name_of(config.model.arch), config.preset, name_of(preset(config.preset).arch));
  }
  if (config.model.arch == Architecture::kLlama) return;
  for (const ConfigField& field : config_fields()) {
    if (field.llama_only && said(field.full_name())) {
      throw_user_error("{} has no effect with model.arch = \"gpt2\": remove it, or use \"llama\".",
                       field.full_name());
    }
  }
}

}  // namespace

void fill_in_defaults(Config& config, const SaidKey& said) {
  refuse_keys_of_other_architecture(config, said);
  derive_model(config, said);
  if (config.model.context == 0 && !said("model.context")) config.model.context = config.data.seq_len;
  if (!said("optimizer.weight_decay") && config.optimizer.name != "adamw") config.optimizer.weight_decay = 0.0;
  if (!said("optimizer.momentum") && config.optimizer.name == "rmsprop") config.optimizer.momentum = 0.0;
  if (!said("checkpoint.dir")) config.checkpoint.dir = config.output.dir + "/checkpoints";
}

}  // namespace meshtrain
