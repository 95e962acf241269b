#include "checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "checkpoint/manifest.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

bool has_manifest(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kManifestName, ignored);
}

// Calls visit(path, name) for every directory in `directory`; none when that does not exist.
template <class Visit>
void for_each_directory(const std::string& directory, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) visit(entry->path(), entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    throw_user_error("cannot list the checkpoints in {}: {}.", directory, error.message());
  }
}

std::vector<CheckpointPlace> checkpoints(const std::string& directory, bool committed) {
  std::vector<CheckpointPlace> places;
  for_each_directory(directory, [&](const fs::path& path, const std::string& name) {
    const auto step = step_of_name(name);
    if (step && has_manifest(path) == committed) places.push_back({*step, path.string()});
  });
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return places;
}

// step-00000020.damaged, step-00000020.damaged-2 ….
std::vector<CheckpointPlace> damaged_checkpoints(const std::string& directory) {
  std::vector<CheckpointPlace> places;
  for_each_directory(directory, [&](const fs::path& path, const std::string& name) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos || !name.substr(dot + 1).starts_with(kDamaged)) return;
    if (const auto step = step_of_name(name.substr(0, dot))) places.push_back({*step, path.string()});
  });
  return places;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  // The name must be the one that checkpoint_name gives: no sign, no stray zeros, nothing after it.
  if (error != std::errc() || end != name.data() + name.size() || step < 0 || name != checkpoint_name(step))
    return std::nullopt;
  return step;
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

std::vector<CheckpointPlace> checkpoints_before(const std::string& path) {
  const fs::path place = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  const auto step = step_of_name(place.filename().string());
  if (!step) return {};
  std::vector<CheckpointPlace> places =
      committed_checkpoints(place.has_parent_path() ? place.parent_path().string() : ".");
  std::erase_if(places, [&](const CheckpointPlace& other) { return other.step >= *step; });
  std::reverse(places.begin(), places.end());
  return places;
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

void prepare_checkpoint_directory(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw_user_error("cannot create checkpoint.dir = \"{}\": {}.", directory, error.message());
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    throw_user_error("cannot write to checkpoint.dir = \"{}\": {}.", directory, std::strerror(errno));
  }
}

std::error_code remove_checkpoint(const std::string& path, const WriteHook& hook) {
  std::error_code failed;
  if (!fs::is_symlink(path, failed)) {
    const bool was_committed = fs::remove(fs::path(path) / kManifestName, failed);
    if (failed && failed != std::errc::not_a_directory) return failed;
    if (was_committed) {
      report(hook, "uncommit", path);
      sync_directory(path, hook);
    }
    for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed)) {
      std::error_code ignored;
      fs::remove_all(entry->path(), ignored);
      report(hook, "remove", entry->path().string());
    }
  }
  fs::remove_all(path, failed);
  if (!failed) report(hook, "remove", path);
  return failed;
}

std::vector<std::string> prune_checkpoints(const std::string& directory, std::int64_t keep,
                                           const WriteHook& hook) {
  std::vector<std::string> unremoved;
  const auto remove = [&](const std::string& path) {
    if (const std::error_code failed = remove_checkpoint(path, hook)) {
      unremoved.push_back(fmt::format("{}: {}", path, failed.message()));
    }
  };
  const std::vector<CheckpointPlace> committed = committed_checkpoints(directory);
  if (committed.empty()) return unremoved;
  for (const auto& places : {uncommitted_checkpoints(directory), damaged_checkpoints(directory)}) {
    for (const CheckpointPlace& place : places) {
      if (place.step <= committed.back().step) remove(place.path);
    }
  }
  if (keep <= 0) return unremoved;
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < committed.size(); ++i) remove(committed[i].path);
  return unremoved;
}

std::string set_aside_checkpoint(const std::string& path, std::string_view suffix) {
  const std::string directory = fs::path(path).parent_path().string();
  std::string target = fmt::format("{}.{}", path, suffix);
  std::error_code ignored;
  for (int n = 2; fs::exists(target, ignored); ++n) target = fmt::format("{}.{}-{}", path, suffix, n);
  rename_and_sync(directory, path, target);
  return target;
}

std::vector<std::string> set_aside_checkpoints_after(const std::string& directory, std::int64_t step) {
  std::vector<std::string> moved;
  std::vector<CheckpointPlace> places = committed_checkpoints(directory);
  // The newest first: at any moment the newest of those left is a checkpoint of the same run.
  for (auto place = places.rbegin(); place != places.rend() && place->step > step; ++place) {
    moved.push_back(set_aside_checkpoint(place->path, kSuperseded));
  }
  return moved;
}

}  // namespace meshtrain
