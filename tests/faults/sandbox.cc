#include "faults/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace meshtrain::faults {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

fs::path filler_of(const fs::path& disk) {
  return disk / ".filler";
}

bool write_line(const char* path, const std::string& line) {
  std::ofstream file(path);
  return static_cast<bool>(file << line << std::flush);
}

bool unshare_mounts() {
  if (unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = std::to_string(getuid());
  const std::string group = std::to_string(getgid());
  // The same user as outside: permissions go on holding it back once it has called exec.
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
         write_line("/proc/self/uid_map", user + " " + user + " 1") &&
         write_line("/proc/self/setgroups", "deny") &&
         write_line("/proc/self/gid_map", group + " " + group + " 1");
}

}  // namespace

bool enter_private_mounts() {
  static const bool entered =
      unshare_mounts() && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

SmallDisk::SmallDisk(const fs::path& at, std::int64_t bytes) : at_(at) {
  fs::create_directories(at);
  const std::string options = "mode=0777,size=" + std::to_string(bytes);
  if (mount("none", at.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    throw std::runtime_error("cannot mount a small disk: " + std::string(std::strerror(errno)));
  }
}

SmallDisk::~SmallDisk() {
  umount2(at_.c_str(), MNT_DETACH);
}

void SmallDisk::fill_but(std::int64_t bytes) const {
  const int file = open(filler_of(at_).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::vector<char> page(4096);
  off_t size = lseek(file, 0, SEEK_END);
  for (ssize_t n = 0; (n = write(file, page.data(), page.size())) > 0;) size += n;
  const bool full = errno == ENOSPC && ftruncate(file, std::max<off_t>(size - bytes, 0)) == 0;
  close(file);
  if (!full) throw std::runtime_error("cannot fill the small disk");
}

void SmallDisk::empty() const {
  fs::remove(filler_of(at_));
}

void become_somebody_plain() {
  if (getuid() != 0) return;
  if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(126);
}

bool somebody_plain_may_run(const std::string& binary) {
  const pid_t child = fork();
  if (child == 0) {
    become_somebody_plain();
    _exit(access(binary.c_str(), X_OK) == 0 ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0;
}

void give_to_somebody_plain(const fs::path& folder) {
  if (getuid() != 0) return;
  const auto give = [](const fs::path& path) {
    if (lchown(path.c_str(), kNobody, kNobody) != 0) throw std::runtime_error("cannot chown " + path.string());
  };
  give(folder);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) give(entry.path());
}

}  // namespace meshtrain::faults
