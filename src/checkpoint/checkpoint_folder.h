// Folders of checkpoints: which are there, which counts, and what is cleared away. manifest.h says what a
// checkpoint is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "checkpoint/file_writer.h"

namespace meshtrain {

struct CheckpointPlace {
  std::int64_t step = 0;
  std::string path;
  friend bool operator==(const CheckpointPlace&, const CheckpointPlace&) = default;
};

// "step-00000100".
std::string checkpoint_name(std::int64_t step);
// Of a name that checkpoint_name gives; nullopt for any other.
std::optional<std::int64_t> step_of_name(const std::string& name);

// Directories of the right name in `directory`, ascending by step: those with a manifest, or those without.
// None when `directory` does not exist.
std::vector<CheckpointPlace> committed_checkpoints(const std::string& directory);
std::vector<CheckpointPlace> uncommitted_checkpoints(const std::string& directory);

std::optional<CheckpointPlace> newest_checkpoint(const std::string& directory);
// The committed ones beside `path` of earlier steps, the newest first.
std::vector<CheckpointPlace> checkpoints_before(const std::string& path);

// The checkpoint that a user means by `path`: itself, the newest in it, or the newest in path/checkpoints.
// Throws UserError when there is none.
std::string resolve_checkpoint(const std::string& path);

// Creates a run's directory of checkpoints. Throws UserError when that fails or nothing can be written there.
void prepare_checkpoint_directory(const std::string& directory);

// Removes a checkpoint, or what there is of one; from the first moment on it does not count any more. Of a link
// to one that lies elsewhere, the link. Returns why it could not be removed; then it is whole, or does not
// count.
std::error_code remove_checkpoint(const std::string& path, const WriteHook& hook = {});

// Removes all committed checkpoints but the newest `keep` (0: keeps all), oldest first; and, of steps not later
// than the newest, directories that were never committed and checkpoints set aside as damaged. Returns what
// could not be removed, with the reason: "PATH: REASON".
std::vector<std::string> prune_checkpoints(const std::string& directory, std::int64_t keep,
                                           const WriteHook& hook = {});

// For a run that goes on from an earlier step, so that they do not pass for its own: renames checkpoints after
// `step` to step-NNNNNNNN.SUFFIX, or SUFFIX-2 …. Returns their new paths.
inline constexpr std::string_view kSuperseded = "superseded";
inline constexpr std::string_view kDamaged = "damaged";
std::string set_aside_checkpoint(const std::string& path, std::string_view suffix);
std::vector<std::string> set_aside_checkpoints_after(const std::string& directory, std::int64_t step);

}  // namespace meshtrain
