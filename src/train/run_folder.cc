#include "train/run_folder.h"

#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/temporary_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/manifest.h"
#include "train/config.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

fs::path without_trailing_slash(const std::string& dir) {
  const fs::path path = fs::path(dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

std::string set_aside(const fs::path& dir) {
  for (int i = 1;; ++i) {
    const fs::path aside = dir.string() + "." + std::to_string(i);
    if (fs::exists(aside)) continue;
    fs::rename(dir, aside);
    return aside.string();
  }
}

}  // namespace

bool lies_in(const std::string& inner, const std::string& outer) {
  const auto whole = [](const std::string& path) { return fs::absolute(path + "/").lexically_normal(); };
  const fs::path way = whole(inner).lexically_relative(whole(outer));
  return !way.empty() && *way.begin() != "..";
}

bool holds_run(const std::string& dir) {
  for (const char* name : {"metrics.jsonl", "summary.json", "checkpoints"}) {
    std::error_code ignored;
    if (fs::exists(fs::path(dir) / name, ignored)) return true;
  }
  return false;
}

std::string prepare_run_folder(const std::string& dir, bool keep) {
  const fs::path path = without_trailing_slash(dir);
  std::string aside;
  try {
    if (!keep && holds_run(path.string())) aside = set_aside(path);
    fs::create_directories(path);
  } catch (const fs::filesystem_error& error) {
    throw_user_error(
        "output.dir = \"{}\" cannot be used as run folder: {}; choose another output.dir or fix it", dir,
        error.code().message());
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    throw_user_error("output.dir = \"{}\" is not writable; choose another output.dir or change its permissions",
                     dir);
  }
  return aside;
}

void write_whole_file(const std::string& path, const std::string& text) {
  const std::string directory = fs::absolute(path).parent_path().string();
  TemporaryFile temporary(path + ".tmp");
  write_and_sync(temporary.path(), text);
  rename_and_sync(directory, temporary.path(), path);
  temporary.keep();
}

std::string find_checkpoint(const std::string& path) {
  if (is_hf_folder(path)) {
    throw_user_error("{} is a Hugging Face folder, no checkpoint: `meshtrain ckpt import` makes one of it.",
                     path);
  }
  const std::string file = (fs::path(path) / "config.toml").string();
  std::error_code ignored;
  if (!fs::exists(file, ignored) || fs::exists(fs::path(path) / kManifestName, ignored)) {
    return resolve_checkpoint(path);
  }
  const Config config = load_config(file, {}, ConfigWriter::kRun);
  if (lies_in(config.checkpoint.dir, config.output.dir)) return resolve_checkpoint(path);
  if (const auto newest = newest_checkpoint(config.checkpoint.dir)) return newest->path;
  throw_user_error(
      "{} is a run folder without checkpoints: none are in its checkpoint.dir = \"{}\" (which counts from the "
      "folder where the run was started, unless it begins with /).",
      path, config.checkpoint.dir);
}

}  // namespace meshtrain
