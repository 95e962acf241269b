// The manifest of a checkpoint (docs/formats.md): which tensors it has, and where each piece of them lies.
//
// A checkpoint is a directory DIR/step-00000100 that exists once manifest.json is there: the manifest is
// renamed into place after everything else is on the disk, and removed before everything else. A directory
// without one is invisible.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "checkpoint/piece.h"
#include "device/tensor.h"

namespace meshtrain {

inline constexpr std::string_view kManifestName = "manifest.json";

// A checkpoint of another version of the program: not damaged, but nothing that this one can read.
class OtherVersionError : public UserError {
 public:
  using UserError::UserError;
};

struct ManifestFile {
  std::uint64_t bytes = 0;
  std::string hash;  // XXH3-64: of a shard's header, of all bytes of any other file
  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestPiece {
  std::string file;  // a shard, in which it has the tensor's name
  PieceRange range;
  std::string hash;  // XXH3-64 of its bytes
  friend bool operator==(const ManifestPiece&, const ManifestPiece&) = default;
};

struct ManifestTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestPiece> pieces;  // every element lies in one
  friend bool operator==(const ManifestTensor&, const ManifestTensor&) = default;
};

// What one rank writes of a checkpoint, or all of them together.
struct ManifestPart {
  std::map<std::string, ManifestFile> shards;
  std::map<std::string, ManifestTensor> tensors;
};
nlohmann::json to_json(const ManifestPart& part);
// Throws nlohmann::json::exception, StrictJsonError, or UserError beginning with `path`, when it is not what
// to_json gave.
ManifestPart part_from_json(const nlohmann::json& json, const std::string& path);
// Adds what another rank wrote.
void merge(ManifestPart& into, ManifestPart&& part);

struct Manifest {
  std::int64_t step = 0;
  ManifestPart contents;
  std::map<std::string, ManifestFile> files;  // others, by their path in the checkpoint
  nlohmann::json state;                       // what else the run needs to go on
};

// With a hash over the rest, so that a flipped bit in a position or a loss scale is noticed too.
std::string to_text(const Manifest& manifest);

// Throws UserError naming `path` when it is not what to_text wrote, to the byte.
Manifest parse_manifest(std::string_view text, const std::string& path);
Manifest read_manifest(const std::string& path);

}  // namespace meshtrain
