#include "data/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::size_t kBufferBytes = 1U << 20U;

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), partial_(fmt::format("{}.partial", path_)) {
  std::error_code error;
  if (path_.empty() || path_.ends_with('/') || std::filesystem::is_directory(path_, error)) {
    throw_user_error("the output \"{}\" names a folder. Name a file in it.", path_);
  }
  error.clear();
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    throw_user_error("the folder of the output \"{}\" cannot be created: {}. Choose another place.", path_,
                     error.message());
  }
  const HeldSignals waiting;
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    throw_user_error(
        "the output \"{}\" cannot be written: {}. Choose another place, or change its permissions.", path_,
        std::strerror(errno));
  }
  // The lock, and that the name still leads to the file that we hold, keep two writers apart.
  struct stat held {};
  struct stat named {};
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd_, &held) != 0 ||
      ::stat(partial_.c_str(), &named) != 0 || held.st_ino != named.st_ino) {
    ::close(fd_);
    throw_user_error(
        "the output \"{}\" is being written by another process. Wait for it, or choose another name.", path_);
  }
  temporary_.emplace(partial_);
  if (::ftruncate(fd_, 0) != 0) {
    const int reason = errno;
    ::close(fd_);
    throw_user_error("the output \"{}\" cannot be written: {}", path_, std::strerror(reason));
  }
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  temporary_.reset();  // before the lock ends
  ::close(fd_);
}

void OutputFile::fail(const char* action) const {
  const int reason = errno;
  throw_run_error("{} \"{}\" failed after {} bytes: {}.{} Nothing was left behind.", action, partial_, size_,
                  std::strerror(reason),
                  reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                      ? " Free some space, or write to another disk, and run it again."
                      : "");
}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<std::int64_t>(bytes.size());
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), count);
    bytes = bytes.subspan(count);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("writing");
    done += static_cast<std::size_t>(count);
  }
  buffer_.clear();
}

void OutputFile::finish() {
  flush();
  if (::fsync(fd_) != 0) fail("writing");
}

void OutputFile::commit() {
  check(buffer_.empty(), "an output file is finished before it is committed");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("renaming");
  temporary_->keep();
  ::close(fd_);
  fd_ = -1;
  // The new name itself survives a power cut once the folder is on disk.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int folder_fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd >= 0) {
    (void)::fsync(folder_fd);
    ::close(folder_fd);
  }
}

}  // namespace meshtrain
