#include "telemetry/peak_cache.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/temporary_file.h"
#include "base/version.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 1 << 20;  // more than any list of machines that we wrote

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Entries of the file; an empty array where it is missing or not ours.
nlohmann::json entries_of(const std::string& path) {
  std::error_code failed;
  if (!fs::is_regular_file(path, failed) || fs::file_size(path, failed) > kMostBytes || failed) {
    return nlohmann::json::array();
  }
  std::ifstream file(path);
  nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("peaks") || !json["peaks"].is_array()) return nlohmann::json::array();
  return std::move(json["peaks"]);
}

bool is_of(const nlohmann::json& entry, const PeakKey& key) {
  const auto says = [&](const char* name, const nlohmann::json& value) {
    const auto found = entry.find(name);
    return found != entry.end() && *found == value;
  };
  return entry.is_object() && says("processor", key.processor) &&
         says("precision", std::string(name_of(key.dtype))) && says("threads", key.threads) &&
         says("version", version());
}

std::optional<KnownPeak> peak_of(const nlohmann::json& entry) {
  const auto found = entry.find("tflops");
  if (found == entry.end() || !found->is_number()) return std::nullopt;
  const auto value = found->get<double>();
  if (!(value > 0.0 && std::isfinite(value))) return std::nullopt;
  return KnownPeak{.tflops = value, .undisturbed = entry.value("undisturbed", nlohmann::json()) == true};
}

bool write_whole(const std::string& path, const std::string& text) {
  TemporaryFile temporary(fmt::format("{}.{}", path, getpid()));
  std::ofstream file(temporary.path(), std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code failed;
  if (file) fs::rename(temporary.path(), path, failed);
  if (!file || failed) return false;
  temporary.keep();
  return true;
}

}  // namespace

std::string processor_name(const std::string& cpuinfo) {
  std::ifstream file(cpuinfo);
  std::map<std::string, std::string> first;  // of the first processor
  for (std::string line; std::getline(file, line) && !trimmed(line).empty();) {
    const auto colon = line.find(':');
    if (colon != std::string::npos)
      first.emplace(trimmed(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
  }
  if (first["model name"].empty() && first["flags"].empty()) return "unknown";
  const std::string& flags = first["flags"];
  return fmt::format("{}, family {} model {} stepping {}, flags {:016x}", first["model name"],
                     first["cpu family"], first["model"], first["stepping"],
                     XXH3_64bits(flags.data(), flags.size()));
}

PeakCache::PeakCache(std::string path) : path_(std::move(path)) {}

std::string PeakCache::default_path() {
  // A relative folder of the specification is to be passed over (XDG Base Directory, "Environment variables").
  const auto folder_in = [](const char* variable) -> fs::path {
    const char* const value = std::getenv(variable);
    return value != nullptr && fs::path(value).is_absolute() ? fs::path(value) : fs::path();
  };
  const char* const kFile = "meshtrain/peaks.json";
  if (const fs::path cache = folder_in("XDG_CACHE_HOME"); !cache.empty()) return (cache / kFile).string();
  if (const fs::path home = folder_in("HOME"); !home.empty()) return (home / ".cache" / kFile).string();
  return "";
}

std::optional<KnownPeak> PeakCache::find(const PeakKey& key) const {
  if (path_.empty()) return std::nullopt;
  for (const nlohmann::json& entry : entries_of(path_)) {
    if (is_of(entry, key)) return peak_of(entry);
  }
  return std::nullopt;
}

bool PeakCache::keep(const PeakKey& key, KnownPeak peak) const {
  if (path_.empty()) return false;
  std::error_code failed;
  fs::create_directories(fs::path(path_).parent_path(), failed);
  nlohmann::json entries = nlohmann::json::array();
  for (const nlohmann::json& entry : entries_of(path_)) {
    if (is_of(entry, key)) {
      const KnownPeak before = peak_of(entry).value_or(KnownPeak());
      peak = {.tflops = std::max(peak.tflops, before.tflops),
              .undisturbed = peak.undisturbed || before.undisturbed};
    } else {
      entries.push_back(entry);
    }
  }
  entries.push_back({{"processor", key.processor},
                     {"precision", name_of(key.dtype)},
                     {"threads", key.threads},
                     {"version", version()},
                     {"tflops", peak.tflops},
                     {"undisturbed", peak.undisturbed}});
  return write_whole(path_, nlohmann::json{{"peaks", entries}}.dump(2) + "\n");
}

}  // namespace meshtrain
