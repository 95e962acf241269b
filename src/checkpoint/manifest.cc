#include "checkpoint/manifest.h"

#include <span>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/mapped_file.h"
#include "checkpoint/file_writer.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "meshtrain-checkpoint";
constexpr std::int64_t kVersion = 1;

std::string hash_of_json(const Json& json) {
  const std::string text = json.dump();
  return hash_of(std::as_bytes(std::span(text)));
}

Manifest from_json(const Json& json) {
  Manifest manifest;
  manifest.step = json.at("step").get<std::int64_t>();
  for (const auto& [name, file] : json.at("files").items()) {
    manifest.files[name] = {file.at("bytes").get<std::uint64_t>(), file.at("xxh3").get<std::string>()};
  }
  manifest.state = json.at("state");
  return manifest;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"step", manifest.step}, {"state", manifest.state}};
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files)
    json["files"][name] = {{"bytes", file.bytes}, {"xxh3", file.hash}};
  json["hash"] = hash_of_json(json);
  return json.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  try {
    Json json = Json::parse(text);
    if (json.at("format") != kFormat) throw_user_error("{} is not the manifest of a checkpoint.", path);
    if (json.at("version") != kVersion) {
      throw_user_error("{} is of version {}, but this meshtrain reads version {}: use the one that wrote it.",
                       path, json.at("version").dump(), kVersion);
    }
    const Json hash = json.at("hash");
    json.erase("hash");
    if (hash != hash_of_json(json)) throw_user_error("{} is damaged: its contents do not give its hash.", path);
    return from_json(json);
  } catch (const Json::exception& error) {
    throw_user_error("{} is damaged: {}.", path, json_reason(error));
  }
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(MappedFile::open(path, "the manifest").text(), path);
}

}  // namespace meshtrain
