// model.from in a config: the sizes that [model] leaves out.
#pragma once

#include <optional>
#include <string>

#include "train/config.h"
#include "train/config_defaults.h"
#include "train/model_source.h"

namespace meshtrain {

// Reads what config.from names into config.model and returns it; nullopt where it is empty, or need not be
// read because every key of [model] was said. `origin`: where the key was said.
std::optional<ModelDescription> source_of_sizes(Config& config, const SaidKey& said, const std::string& origin);

// Once all keys are stored: what [model] says must not contradict the source, whose tokenizer is the default.
void check_source(Config& config, const ModelDescription& source, const SaidKey& said);

}  // namespace meshtrain
