// Names that other programs have for keys of a config, and what to write here: nanoGPT, Megatron-LM, DeepSpeed,
// Hugging Face, torchtitan, torchtune, and the words of papers.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace meshtrain {

struct ConfigSynonym {
  std::vector<std::string_view> names;  // lower case, with '_'
  std::string_view advice;              // a key, "train.steps", or a sentence without its full stop
};

std::span<const ConfigSynonym> config_synonyms();

// Of a name without regard to case, with '-' for '_'; empty for a name that is not in the table.
std::string_view config_advice(std::string_view name);
// The same of a name that is misspelt (base/nearest.h).
std::string_view nearest_config_advice(std::string_view name);

}  // namespace meshtrain
