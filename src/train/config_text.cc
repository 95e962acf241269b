// to_toml and the reference: the table of keys written out.
#include <fmt/format.h>

#include <string_view>

#include "train/config.h"
#include "train/config_fields.h"

namespace meshtrain {

std::string to_toml(const Config& config) {
  std::string text;
  std::string_view section;
  for (const ConfigField& field : config_fields()) {
    if (field.section != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", field.section);
      section = field.section;
    }
    if (field.llama_only && config.model.arch != Architecture::kLlama) continue;
    text += fmt::format("{} = {}\n", field.key, field.get(config));
  }
  return text;
}

std::string config_reference() {
  const Config defaults;
  std::string text;
  std::string_view section;
  for (const ConfigField& field : config_fields()) {
    if (field.section != section) {
      text += fmt::format("{}## [{}]\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                          section.empty() ? "" : "\n", field.section);
      section = field.section;
    }
    const std::string value =
        field.default_text.empty() ? fmt::format("`{}`", field.get(defaults)) : std::string(field.default_text);
    text += fmt::format("| `{}` | {} | {} | {}{} |\n", field.key, field.type, value,
                        field.llama_only ? "llama: " : "", field.meaning);
  }
  return text;
}

}  // namespace meshtrain
