#include "checkpoint/checkpoint_writer.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

void report(const WriteHook& hook, std::string_view step, const fs::path& path) {
  if (hook) hook(fmt::format("{} {}", step, path.string()));
}

ManifestFile write_tensors(const std::string& path, std::span<const NamedTensor> tensors,
                           const WriteHook& hook) {
  std::vector<SafetensorsDecl> decls;
  for (const NamedTensor& tensor : tensors) decls.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, decls, {{"format", "pt"}}, hook);
  for (const NamedTensor& tensor : tensors) writer.append(tensor.get());
  writer.finish();
  return {writer.size(), writer.hash()};
}

void create_directory_or_throw(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_run_error("cannot create the directory {}: {}.", path.string(), error.message());
}

// Manifest first and for certain, so that no half of a checkpoint passes for a whole one.
void remove_checkpoint(const fs::path& path, const WriteHook& hook) {
  std::error_code error;
  if (fs::remove(path / kManifestName, error)) {
    report(hook, "uncommit", path);
    sync_directory(path.string(), hook);
  }
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
    report(hook, "remove", entry->path());
  }
  fs::remove_all(path, error);
  if (error) throw_run_error("cannot remove {}: {}.", path.string(), error.message());
  report(hook, "remove", path);
}

void write_and_commit(const std::string& directory, const fs::path& path, const CheckpointContents& contents,
                      const WriteHook& hook) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) remove_checkpoint(path, hook);
  create_directory_or_throw(path);
  report(hook, "create", path);
  sync_directory(directory, hook);

  const auto at = [&](std::string_view name) { return (path / name).string(); };
  Manifest manifest{.step = contents.step, .files = {}, .state = contents.state};
  manifest.files[std::string(kModelFile)] = write_tensors(at(kModelFile), contents.model, hook);
  manifest.files[std::string(kOptimizerFile)] = write_tensors(at(kOptimizerFile), contents.optimizer, hook);

  const std::string partial = at(kManifestName) + ".tmp";
  FileWriter file(partial, hook);
  file.write(to_text(manifest));
  file.sync_and_close();
  sync_directory(path.string(), hook);  // the data files' names, before the name that vouches for them
  rename_and_sync(path.string(), partial, at(kManifestName), hook);
}

std::string names_of_committed(const std::string& directory) {
  std::vector<std::string> names;
  for (const CheckpointPlace& place : committed_checkpoints(directory))
    names.push_back(checkpoint_name(place.step));
  if (names.empty()) return fmt::format("There is no earlier checkpoint in {}.", directory);
  return fmt::format("The earlier checkpoints in {} are intact: {}.", directory, fmt::join(names, ", "));
}

std::int64_t total_bytes(const CheckpointContents& contents) {
  std::int64_t total = 0;
  for (const auto* tensors : {&contents.model, &contents.optimizer}) {
    for (const NamedTensor& tensor : *tensors) total += tensor.bytes();
  }
  return total;
}

// Copies the tensors' bytes into `storage` and returns the same contents pointing there.
CheckpointContents copied(const CheckpointContents& contents, std::vector<std::byte>& storage) {
  CheckpointContents copy = contents;
  storage.resize(static_cast<std::size_t>(total_bytes(contents)));
  std::byte* next = storage.data();
  for (auto* tensors : {&copy.model, &copy.optimizer}) {
    for (NamedTensor& tensor : *tensors) {
      const std::span<const std::byte> bytes = tensor.get();
      if (!bytes.empty()) std::memcpy(next, bytes.data(), bytes.size());
      tensor.data = next;
      tensor.fetch = {};
      next += bytes.size();
    }
  }
  return copy;
}

}  // namespace

void write_checkpoint(const std::string& directory, const CheckpointContents& contents, const WriteHook& hook) {
  check(contents.step >= 0, "a checkpoint of a negative step");
  const fs::path path = fs::path(directory) / checkpoint_name(contents.step);
  try {
    create_directory_or_throw(directory);
    write_and_commit(directory, path, contents, hook);
  } catch (const RunError& error) {
    std::error_code ignored;
    fs::remove(path / kManifestName, ignored);
    fs::remove_all(path, ignored);
    throw_run_error(
        "writing the checkpoint of step {}, {} bytes, failed: {} What was written of it has been removed. {}",
        contents.step, total_bytes(contents), error.what(), names_of_committed(directory));
  }
}

void prune_checkpoints(const std::string& directory, std::int64_t keep, const WriteHook& hook) {
  const std::vector<CheckpointPlace> committed = committed_checkpoints(directory);
  if (committed.empty()) return;
  for (const CheckpointPlace& place : uncommitted_checkpoints(directory)) {
    if (place.step < committed.back().step) remove_checkpoint(place.path, hook);
  }
  if (keep <= 0) return;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < committed.size(); ++i) {
    remove_checkpoint(committed[i].path, hook);
  }
}

std::vector<std::string> set_aside_checkpoints_after(const std::string& directory, std::int64_t step) {
  std::vector<std::string> moved;
  std::vector<CheckpointPlace> places = committed_checkpoints(directory);
  // The newest first: at any moment the newest of those left is a checkpoint of the same run.
  for (auto place = places.rbegin(); place != places.rend() && place->step > step; ++place) {
    std::string target = place->path + ".superseded";
    std::error_code ignored;
    for (int n = 2; fs::exists(target, ignored); ++n) target = fmt::format("{}.superseded-{}", place->path, n);
    rename_and_sync(directory, place->path, target);
    moved.push_back(target);
  }
  return moved;
}

CheckpointWriter::CheckpointWriter(std::string directory, std::int64_t keep, bool async, WriteHook hook)
    : directory_(std::move(directory)), keep_(keep), async_(async), hook_(std::move(hook)) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) throw_user_error("cannot create checkpoint.dir = \"{}\": {}.", directory_, error.message());
  if (access(directory_.c_str(), W_OK | X_OK) != 0) {
    throw_user_error("cannot write to checkpoint.dir = \"{}\": {}.", directory_, std::strerror(errno));
  }
}

void CheckpointWriter::write(const CheckpointContents& contents) {
  flush();
  if (!async_) {
    write_and_prune(contents);
    return;
  }
  in_flight_ =
      std::async(std::launch::async, [this, copy = copied(contents, storage_)] { write_and_prune(copy); });
}

void CheckpointWriter::flush() {
  if (in_flight_.valid()) in_flight_.get();
}

void CheckpointWriter::write_and_prune(const CheckpointContents& contents) const {
  write_checkpoint(directory_, contents, hook_);
  prune_checkpoints(directory_, keep_, hook_);
}

}  // namespace meshtrain
