#include "checkpoint/partial_folder.h"

#include <system_error>

#include "base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// Lies in a folder that is being written.
constexpr const char* kMark = ".meshtrain-partial";

// It has a parent and a name. The folder is not there any more when this returns: one that cannot be renamed
// to, as the root of a file system, is found before anything is written.
fs::path place_of(const std::string& out) {
  std::error_code error;
  const fs::path folder =
      (fs::weakly_canonical(fs::absolute(out), error) / "").lexically_normal().parent_path();
  if (!error && fs::exists(folder)) fs::remove(folder, error);
  if (error) {
    throw_user_error("--out {} cannot be replaced ({}); name a folder in it that is not there.", out,
                     error.message());
  }
  return folder;
}

void check_replaceable(const fs::path& partial) {
  std::error_code error;
  const bool ours = fs::exists(partial / kMark, error);
  const bool nothing = fs::is_directory(partial, error) && fs::is_empty(partial, error);
  if (fs::exists(partial, error) && !ours && !nothing) {
    throw_user_error("{} is there, which is the name that --out has while it is written; remove or rename it.",
                     partial.string());
  }
}

}  // namespace

void check_new_folder(const std::string& out) {
  if (out.empty()) throw_user_error("--out is empty; name a folder that is not there.");
  std::error_code error;
  const fs::file_status status = fs::status(out, error);
  if (!fs::exists(status)) {
    if (!fs::is_symlink(fs::symlink_status(out, error))) return;
    throw_user_error("--out {} is a link to nothing; name another folder, or remove it.", out);
  }
  if (!fs::is_directory(status)) throw_user_error("--out {} is a file; name a folder that is not there.", out);
  if (!fs::is_empty(out, error) || error) {
    throw_user_error("--out {} is there already and not empty; name another folder, or remove it.", out);
  }
}

PartialFolder::PartialFolder(const std::string& out) {
  check_new_folder(out);
  out_ = place_of(out);
  partial_ = out_.string() + ".partial";
  check_replaceable(partial_);
  std::error_code error;
  fs::remove_all(partial_, error);
  fs::create_directories(partial_, error);
  if (error) throw_run_error("cannot create the folder {}: {}.", partial_.string(), error.message());
  try {
    write_and_sync((partial_ / kMark).string(), "");
    fs::create_directory(contents());
  } catch (...) {
    fs::remove_all(partial_, error);
    throw;
  }
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  // The mark last: what is left when the process is killed here is known as ours.
  fs::remove_all(contents(), ignored);
  fs::remove_all(partial_, ignored);
}

void PartialFolder::commit(const WriteHook& hook) {
  sync_directory(contents().string(), hook);
  rename_and_sync(out_.parent_path().string(), contents().string(), out_.string(), hook);
}

}  // namespace meshtrain
