#include "train/config_source.h"

#include <algorithm>

#include "base/error.h"
#include "train/config_fields.h"

namespace meshtrain {
namespace {

// As a resumed run's config does: the source may be gone by then.
bool says_every_size(const SaidKey& said) {
  const auto fields = config_fields();
  return std::all_of(fields.begin(), fields.end(), [&](const ConfigField& field) {
    return field.section != "model" || field.llama_only || said(field.full_name());
  });
}

}  // namespace

std::optional<ModelDescription> source_of_sizes(Config& config, const SaidKey& said,
                                                const std::string& origin) {
  if (config.from.empty() || says_every_size(said)) return std::nullopt;
  try {
    ModelDescription source = describe_model(config.from);
    config.model = source.spec;
    return source;
  } catch (const UserError& error) {
    throw_user_error("{}: model.from: {}", origin, error.what());
  }
}

void check_source(Config& config, const ModelDescription& source, const SaidKey& said) {
  if (!config.preset.empty()) {
    throw_user_error(
        "model.preset = \"{}\" and model.from = \"{}\" both say what the model is; leave one of them out.",
        config.preset, config.from);
  }
  check_model_of_source(config.model, source.spec, config.from);
  if (!said("data.tokenizer") && !source.tokenizer.empty()) config.data.tokenizer = source.tokenizer;
}

}  // namespace meshtrain
