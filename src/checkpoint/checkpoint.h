// Finding and reading checkpoints; manifest.h says what one is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "device/tensor.h"

namespace meshtrain {

struct CheckpointPlace {
  std::int64_t step = 0;
  std::string path;
  friend bool operator==(const CheckpointPlace&, const CheckpointPlace&) = default;
};

// "step-00000100".
std::string checkpoint_name(std::int64_t step);

// Directories of the right name in `directory`, ascending by step: those with a manifest, or those without.
// None when `directory` does not exist.
std::vector<CheckpointPlace> committed_checkpoints(const std::string& directory);
std::vector<CheckpointPlace> uncommitted_checkpoints(const std::string& directory);

std::optional<CheckpointPlace> newest_checkpoint(const std::string& directory);

// The checkpoint that a user means by `path`: itself, the newest in it, or the newest in path/checkpoints.
// Throws UserError when there is none.
std::string resolve_checkpoint(const std::string& path);

// Where a tensor of a checkpoint goes: pieces of host memory for ranges of its elements, perhaps none.
struct TensorDestination {
  struct Piece {
    std::int64_t first = 0;
    std::int64_t count = 0;
    void* data = nullptr;
  };
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<Piece> pieces;
};

// Copies every tensor of the file. The file must have exactly the tensors asked for, of these types and
// shapes; else UserError naming the first that differs, and nothing is copied.
void read_tensors(const SafetensorsReader& file, std::span<const TensorDestination> tensors);

enum class Verify : std::uint8_t {
  kSizes,  // manifest and the files' sizes and headers
  kBytes,  // and the hash of every byte
};

// A committed checkpoint, opened. What is missing or damaged is a UserError that names the file and the
// newest earlier checkpoint that is whole, if any: nothing falls back to it by itself.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& path, Verify verify = Verify::kBytes);

  const std::string& path() const { return path_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }
  const SafetensorsReader& model() const { return *model_; }
  const SafetensorsReader& optimizer() const { return *optimizer_; }

 private:
  std::string path_;
  Manifest manifest_;
  std::optional<SafetensorsReader> model_;
  std::optional<SafetensorsReader> optimizer_;
};

}  // namespace meshtrain
