// Which ids a Hugging Face folder gives to its special tokens: what generation stops at, and what an export has
// in common with the folder that its run began with.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

inline constexpr const char* kHfGenerationConfig = "generation_config.json";

struct HfTokenIds {
  // The fields of config.json whose names end in "_token_id", as they are there.
  nlohmann::json config = nlohmann::json::object();
  // The text of generation_config.json; nullopt where the folder has none.
  std::optional<std::string> generation_config;

  // The ids that end a text, by the rule of the library (transformers 4.57 and 5.24): eos_token_id, a number or
  // a list, of generation_config.json alone where there is one, even if it has no such field; else of
  // config.json. Null and a missing field are no ids. Ids outside the vocabulary are never generated and do no
  // harm. Throws UserError naming `where`, the file, the field and its value.
  std::vector<std::int64_t> stop_ids(const std::string& where) const;
};

// Throws UserError where stop_ids() does, and where a text is not a JSON object; `where` names what has them.
HfTokenIds hf_token_ids(std::string_view config_text, std::optional<std::string> generation_config,
                        const std::string& where);
HfTokenIds hf_token_ids_of_folder(const std::string& folder);

nlohmann::json to_json(const HfTokenIds& ids);
// Throws UserError naming `where` when it is not what to_json gave.
HfTokenIds hf_token_ids_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace meshtrain
