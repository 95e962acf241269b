#include "checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  // The name must be the one that checkpoint_name gives: no sign, no stray zeros, nothing after it.
  if (error != std::errc() || end != name.data() + name.size() || step < 0 || name != checkpoint_name(step))
    return std::nullopt;
  return step;
}

std::vector<CheckpointPlace> checkpoints(const std::string& directory, bool committed) {
  std::vector<CheckpointPlace> places;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const auto step = step_of_name(entry->path().filename().string());
    std::error_code ignored;
    if (!step || !entry->is_directory(ignored)) continue;
    if (fs::exists(entry->path() / kManifestName, ignored) == committed) {
      places.push_back({*step, entry->path().string()});
    }
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    throw_user_error("cannot list the checkpoints in {}: {}.", directory, error.message());
  }
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return places;
}

bool has_manifest(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kManifestName, ignored);
}

std::string shape_text(const std::vector<std::int64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

// What is wrong with an entry for a destination, or "".
std::string mismatch(const SafetensorsEntry* entry, const TensorDestination& wanted) {
  if (entry == nullptr) return fmt::format("has no tensor \"{}\" {}", wanted.name, wanted.shape.to_string());
  if (shape_text(entry->dims) != wanted.shape.to_string()) {
    return fmt::format("has the tensor \"{}\" as {}, but it should be {}", wanted.name, shape_text(entry->dims),
                       wanted.shape.to_string());
  }
  if (entry->dtype != wanted.dtype) {
    return fmt::format("has the tensor \"{}\" in {}, but it should be {}", wanted.name, entry->dtype_name,
                       safetensors_name(wanted.dtype));
  }
  return "";
}

void verify_file(const std::string& path, const ManifestFile& expected, Verify verify) {
  const MappedFile file = MappedFile::open(path, "the checkpoint file");
  if (file.bytes().size() != expected.bytes) {
    throw_user_error("{} is damaged: it has {} bytes, but the manifest says {}.", path, file.bytes().size(),
                     expected.bytes);
  }
  if (verify == Verify::kBytes && hash_of(file) != expected.hash) {
    throw_user_error("{} is damaged: its {} bytes do not give the hash in the manifest.", path, expected.bytes);
  }
}

// Manifest and files of the checkpoint at `path`, checked.
Manifest verified_manifest(const std::string& path, Verify verify) {
  Manifest manifest = read_manifest(path + "/" + std::string(kManifestName));
  for (const std::string_view name : {kModelFile, kOptimizerFile}) {
    if (!manifest.files.contains(std::string(name))) {
      throw_user_error("{}/{} does not list {}.", path, kManifestName, name);
    }
  }
  for (const auto& [name, file] : manifest.files) {
    // A manifest from elsewhere must not lead outside of its directory.
    if (fs::path(name).filename() != name) {
      throw_user_error("{}/{}: \"{}\" is not a file name.", path, kManifestName, name);
    }
    verify_file((fs::path(path) / name).string(), file, verify);
  }
  return manifest;
}

// The newest checkpoint beside `path` and before it that is whole; "" for none.
std::string earlier_whole_checkpoint(const std::string& path) {
  const fs::path place = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  const auto step = step_of_name(place.filename().string());
  if (!step) return "";
  const std::string directory = place.has_parent_path() ? place.parent_path().string() : ".";
  std::vector<CheckpointPlace> places = committed_checkpoints(directory);
  std::reverse(places.begin(), places.end());
  for (const CheckpointPlace& other : places) {
    if (other.step >= *step) continue;
    try {
      verified_manifest(other.path, Verify::kBytes);
      return other.path;
    } catch (const UserError&) {  // damaged too
    }
  }
  return "";
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::vector<CheckpointPlace> committed_checkpoints(const std::string& directory) {
  return checkpoints(directory, /*committed=*/true);
}

std::vector<CheckpointPlace> uncommitted_checkpoints(const std::string& directory) {
  return checkpoints(directory, /*committed=*/false);
}

std::optional<CheckpointPlace> newest_checkpoint(const std::string& directory) {
  const std::vector<CheckpointPlace> places = committed_checkpoints(directory);
  if (places.empty()) return std::nullopt;
  return places.back();
}

std::string resolve_checkpoint(const std::string& path) {
  if (has_manifest(path)) return path;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    throw_user_error("{}: there is no such checkpoint or run folder.", path);
  for (const std::string& directory : {path, path + "/checkpoints"}) {
    if (const auto newest = newest_checkpoint(directory)) return newest->path;
  }
  throw_user_error(
      "{} is neither a checkpoint nor a folder of checkpoints: there is no {} in it and no step-… folder that "
      "has one (a folder without it was not written to the end).",
      path, kManifestName);
}

void read_tensors(const SafetensorsReader& file, std::span<const TensorDestination> tensors) {
  constexpr std::string_view kHint =
      "It is a checkpoint of another model or optimizer: use the config of its run.";
  std::set<std::string_view> wanted;
  for (const TensorDestination& tensor : tensors) {
    const std::string problem = mismatch(file.find(tensor.name), tensor);
    if (!problem.empty()) throw_user_error("{} {}. {}", file.name(), problem, kHint);
    for (const TensorDestination::Piece& piece : tensor.pieces) {
      check(piece.first >= 0 && piece.count >= 0 && piece.first + piece.count <= tensor.shape.numel(),
            "a piece of a tensor reaches beyond it");
    }
    wanted.insert(tensor.name);
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!wanted.contains(entry.name)) {
      throw_user_error("{} has a tensor \"{}\" {} that has no place here. {}", file.name(), entry.name,
                       shape_text(entry.dims), kHint);
    }
  }
  for (const TensorDestination& tensor : tensors) {
    if (tensor.pieces.empty()) continue;
    const std::span<const std::byte> data = file.find(tensor.name)->data;
    const std::int64_t size = size_of(tensor.dtype);
    for (const TensorDestination::Piece& piece : tensor.pieces) {
      const std::span<const std::byte> from = data.subspan(static_cast<std::size_t>(piece.first * size),
                                                           static_cast<std::size_t>(piece.count * size));
      std::memcpy(piece.data, from.data(), from.size());
    }
    file.let_go();
  }
}

Checkpoint::Checkpoint(const std::string& path, Verify verify) : path_(path) {
  if (!has_manifest(path)) {
    throw_user_error("{} is not a checkpoint: it has no {}, so it was not written to the end.", path,
                     kManifestName);
  }
  try {
    manifest_ = verified_manifest(path, verify);
    model_.emplace(path + "/" + std::string(kModelFile));
    optimizer_.emplace(path + "/" + std::string(kOptimizerFile));
  } catch (const UserError& error) {
    const std::string earlier = earlier_whole_checkpoint(path);
    if (earlier.empty()) throw_user_error("{} No earlier checkpoint beside it is whole.", error.what());
    throw_user_error("{} The newest earlier checkpoint that is whole is {}: name it to go on from there.",
                     error.what(), earlier);
  }
}

}  // namespace meshtrain
