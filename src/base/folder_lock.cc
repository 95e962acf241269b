#include "base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

namespace meshtrain {

FolderLock::FolderLock(const std::string& folder, std::chrono::duration<double> patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ < 0) return;
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      if (is_of(folder)) return;
      continue;  // it was renamed meanwhile
    }
    if (errno != EWOULDBLOCK) return;
    taken_ = std::chrono::steady_clock::now() >= end;
    if (taken_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool FolderLock::is_of(const std::string& folder) const {
  struct stat here = {};
  struct stat there = {};
  return descriptor_ >= 0 && fstat(descriptor_, &here) == 0 && stat(folder.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

std::string FolderLock::current_name() const {
  struct stat here = {};
  if (descriptor_ < 0 || fstat(descriptor_, &here) != 0 || here.st_nlink == 0) return "";
  std::error_code failed;
  const auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor_), failed);
  return failed || name.string().ends_with(" (deleted)") ? "" : name.string();
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace meshtrain
