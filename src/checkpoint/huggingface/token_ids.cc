#include "checkpoint/huggingface/token_ids.h"

#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/mapped_file.h"
#include "checkpoint/huggingface/config_reader.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kEnd = "eos_token_id";

Json parse(std::string_view text, const std::string& path) {
  try {
    Json json = Json::parse(text);
    if (!json.is_object()) throw_user_error("{}: the text is not a JSON object.", path);
    return json;
  } catch (const Json::exception& error) {
    throw_user_error("{} is not JSON: {}.", path, json_reason(error));
  }
}

bool is_id(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

std::vector<std::int64_t> ids_of(const Json& object, const std::string& path) {
  const HfFieldReader fields(object, path);
  if (!fields.has(kEnd)) return {};
  const Json& value = fields.get(kEnd);
  std::vector<std::int64_t> ids;
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!is_id(id))
      fields.refuse(kEnd, "expects a token id, which is a whole number from 0, or a list of them");
    ids.push_back(id.get<std::int64_t>());
  }
  if (ids.empty()) fields.refuse(kEnd, "expects a token id, or a list of at least one");
  return ids;
}

}  // namespace

std::vector<std::int64_t> HfTokenIds::stop_ids(const std::string& where) const {
  if (!generation_config) return ids_of(config, where + "/" + kConfig);
  const std::string path = where + "/" + kHfGenerationConfig;
  return ids_of(parse(*generation_config, path), path);
}

HfTokenIds hf_token_ids(std::string_view config_text, std::optional<std::string> generation_config,
                        const std::string& where) {
  HfTokenIds ids;
  ids.generation_config = std::move(generation_config);
  const Json config = parse(config_text, where + "/" + kConfig);
  for (const auto& [key, value] : config.items()) {
    if (key.ends_with("_token_id")) ids.config[key] = value;
  }
  (void)ids.stop_ids(where);
  return ids;
}

HfTokenIds hf_token_ids_of_folder(const std::string& folder) {
  const auto read = [&](const char* name) {
    return std::string(MappedFile::open(folder + "/" + name, "the file of the model folder").text());
  };
  std::error_code ignored;
  std::optional<std::string> generation_config;
  if (std::filesystem::exists(folder + "/" + kHfGenerationConfig, ignored))
    generation_config = read(kHfGenerationConfig);
  return hf_token_ids(read(kConfig), std::move(generation_config), folder);
}

Json to_json(const HfTokenIds& ids) {
  Json json = {{"config", ids.config}};
  if (ids.generation_config) json["generation_config"] = *ids.generation_config;
  return json;
}

HfTokenIds hf_token_ids_from_json(const Json& json, const std::string& where) {
  HfTokenIds ids;
  try {
    ids.config = json.at("config");
    if (json.contains("generation_config"))
      ids.generation_config = json.at("generation_config").get<std::string>();
  } catch (const Json::exception& error) {
    throw_user_error("{}: what it says of the special tokens of a Hugging Face folder is damaged: {}.", where,
                     json_reason(error));
  }
  (void)ids.stop_ids(where);
  return ids;
}

}  // namespace meshtrain
