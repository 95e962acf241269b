// A checkpoint is a directory DIR/step-00000100 with
//   model.safetensors      the fp32 master of every parameter, under the parameter's name
//   optimizer.safetensors  the optimizer's state, "PARAMETER.STATE"
//   manifest.json          what the checkpoint is: {"format", "version", "step", "files": {NAME: {"bytes",
//                          "xxh3"}}, "state": whatever the run needs to go on, "hash"}
// It exists once manifest.json is there: the manifest is renamed into place after everything else is on
// the disk, and removed before everything else. A directory without one is invisible.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace meshtrain {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kModelFile = "model.safetensors";
inline constexpr std::string_view kOptimizerFile = "optimizer.safetensors";

struct ManifestFile {
  std::uint64_t bytes = 0;
  std::string hash;  // XXH3-64, 16 hexadecimal digits
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct Manifest {
  std::int64_t step = 0;
  std::map<std::string, ManifestFile> files;
  nlohmann::json state;
};

// With a hash over the rest, so that a flipped bit in a position or a loss scale is noticed too.
std::string to_text(const Manifest& manifest);

// Throws UserError naming `path` when it is not what to_text wrote.
Manifest parse_manifest(std::string_view text, const std::string& path);
Manifest read_manifest(const std::string& path);

}  // namespace meshtrain
