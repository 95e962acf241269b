#include "train/run_attempts.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "train/run_folder.h"

namespace meshtrain {
namespace {

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

}  // namespace

RunAttempts::RunAttempts(const Config& config, RunOptions options)
    : folder_(config.output.dir),
      checkpoints_(config.checkpoint.dir),
      options_(std::move(options)),
      earlier_checkpoints_(identities_of_checkpoints()) {
  const std::optional<struct stat> status = status_of(folder_);
  if (status && holds_run(folder_)) earlier_folder_ = status->st_ino;
}

RunAttempts::Next RunAttempts::next() const {
  Next next{options_, "step 1"};
  const std::optional<CheckpointPlace> newest = newest_checkpoint(checkpoints_);
  if (newest && !earlier_checkpoints_.contains(identity_of(*newest))) {
    next.options.resume = true;
    next.options.resume_from.clear();
    next.options.restarted = true;
    next.from = newest->path;
    return next;
  }
  next.options.restarted = folder_is_own();
  if (!options_.resume_from.empty()) {
    next.from = options_.resume_from;
  } else if (options_.resume && newest) {
    next.from = newest->path;
  }
  return next;
}

RunAttempts::Identity RunAttempts::identity_of(const CheckpointPlace& place) {
  const std::string manifest = (std::filesystem::path(place.path) / kManifestName).string();
  const std::optional<struct stat> status = status_of(manifest);
  if (!status) return {};
  return {status->st_dev, status->st_ino, status->st_mtim.tv_sec, status->st_mtim.tv_nsec};
}

std::set<RunAttempts::Identity> RunAttempts::identities_of_checkpoints() const {
  std::set<Identity> identities;
  for (const CheckpointPlace& place : committed_checkpoints(checkpoints_)) {
    identities.insert(identity_of(place));
  }
  return identities;
}

// Another run leaves a folder only as a whole.
bool RunAttempts::folder_is_own() const {
  if (earlier_folder_ == 0) return true;
  const std::optional<struct stat> status = status_of(folder_);
  return !status || status->st_ino != earlier_folder_;
}

}  // namespace meshtrain
