// Reading checkpoints, whatever mesh wrote them; manifest.h says what one is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "device/tensor.h"

namespace meshtrain {

enum class Verify : std::uint8_t {
  kManifest,  // alone
  kSizes,     // the manifest and the files' sizes; each shard's header when it is first read
  kReads,     // and the hash of each piece of a tensor, when it is first read
  kBytes,     // and the hash of every byte
};

// A committed checkpoint, opened. What is missing or damaged is a UserError that names the file; thrown by the
// constructor, it also names the newest earlier checkpoint that is whole, if any. Used by one thread.
class Checkpoint final : public WeightSource {
 public:
  explicit Checkpoint(const std::string& path, Verify verify = Verify::kBytes);

  const std::string& path() const override { return path_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }
  bool has(const std::string& tensor) const { return manifest_.contents.tensors.contains(tensor); }

  // Any fp32 tensor, masters and optimizer state alike.
  void read(const std::string& name, const Shape& whole, std::int64_t first,
            std::span<float> to) const override;
  // Elements of a tensor in its own dtype; it must be there and have them.
  void read_bytes(const std::string& name, std::int64_t first, std::span<std::byte> to) const;
  // Throws UserError naming the first tensor that the checkpoint has and `names` has not.
  void check_has_no_others_than(const std::set<std::string>& names) const;
  void let_go() const override;

  // Hashes every byte of part `part` of `parts` about equal ones, so that ranks can share the work. Throws
  // UserError naming the first damaged tensor and its file.
  void verify(int part = 0, int parts = 1) const;
  // The same of what it carries beside tensors, as a tokenizer.
  void verify_files() const;
  // What is damaged, all of it.
  std::vector<std::string> damages() const;

 private:
  struct Span {  // a piece, and where it begins among all bytes of all tensors
    const std::string* tensor;
    const ManifestPiece* piece;
    std::int64_t begin;
  };
  std::vector<Span> pieces_in_order(std::int64_t& total) const;
  std::map<std::string, std::string> wrong_sizes() const;  // what is wrong, by file
  std::string damage_of(const std::string& tensor, const ManifestPiece& piece) const;
  std::string damage_of_other(const std::string& file) const;
  std::span<const std::byte> bytes_of(const std::string& tensor, const ManifestTensor& declared,
                                      const ManifestPiece& piece) const;
  const SafetensorsReader& shard(const std::string& file) const;
  std::string in_folder(const std::string& file) const { return path_ + "/" + file; }

  std::string path_;
  Verify verify_;
  Manifest manifest_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsReader>> shards_;  // opened so far
  mutable std::set<const ManifestPiece*> whole_;                              // found so on reading
};

}  // namespace meshtrain
