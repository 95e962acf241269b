#include "checkpoint/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace meshtrain {
namespace {

[[noreturn]] void throw_failed(std::string_view what, std::string_view path, int error) {
  throw_run_error("cannot {} {}: {}.", what, path, std::strerror(error));
}

// Bytes after which the system is told to begin writing to the disk.
constexpr std::uint64_t kStartEvery = std::uint64_t{32} << 20U;

}  // namespace

void report(const WriteHook& hook, std::string_view step, std::string_view path) {
  if (hook) hook(step, path);
}

FileWriter::FileWriter(const std::string& path, WriteHook hook) : path_(path), hook_(std::move(hook)) {
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_failed("create", path, errno);
  try {
    report(hook_, "create", path_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileWriter::reserve(std::uint64_t bytes) {
  while (fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL || errno == ENODEV) return;
    throw_failed("write", path_, errno);
  }
}

void FileWriter::write(std::span<const std::byte> bytes) {
  check(descriptor_ >= 0, "write to a closed file");
  // Pieces, so that a kill or a hook can come between them.
  constexpr std::size_t kPiece = std::size_t{4} << 20U;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    const ssize_t written = ::write(descriptor_, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_failed("write", path_, errno);
    if (written == 0) throw_failed("write", path_, ENOSPC);
    const auto done = static_cast<std::size_t>(written);
    size_ += done;
    if (size_ - started_ >= kStartEvery) {
      // Only a hint: the disk works while more is written.
      sync_file_range(descriptor_, static_cast<off_t>(started_), static_cast<off_t>(size_ - started_),
                      SYNC_FILE_RANGE_WRITE);
      started_ = size_;
    }
    bytes = bytes.subspan(done);
    report(hook_, "write", path_);
  }
}

void FileWriter::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void FileWriter::sync_and_close() {
  check(descriptor_ >= 0, "sync of a closed file");
  report(hook_, "before sync", path_);
  if (fsync(descriptor_) != 0) throw_failed("sync", path_, errno);
  // Some network file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) throw_failed("close", path_, errno);
  report(hook_, "sync", path_);
}

void write_and_sync(const std::string& path, std::string_view text, const WriteHook& hook) {
  FileWriter file(path, hook);
  file.write(text);
  file.sync_and_close();
}

void sync_directory(const std::string& directory, const WriteHook& hook) {
  const int descriptor = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_failed("open", directory, errno);
  const int error = fsync(descriptor) != 0 ? errno : 0;
  close(descriptor);
  // Some file systems cannot sync a directory and order its changes themselves.
  if (error != 0 && error != EINVAL) throw_failed("sync", directory, error);
  report(hook, "sync", directory);
}

void rename_and_sync(const std::string& directory, const std::string& from, const std::string& to,
                     const WriteHook& hook) {
  report(hook, "before rename", to);
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_failed("rename to", to, errno);
  report(hook, "rename", to);
  sync_directory(directory, hook);
}

}  // namespace meshtrain
