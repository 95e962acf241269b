#include "checkpoint/file_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

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

void report(const WriteHook& hook, std::string_view step, const std::string& path) {
  if (hook) hook(fmt::format("{} {}", step, path));
}

std::string hexadecimal(XXH64_hash_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace

struct FileWriter::Hash {
  Hash() : state(XXH3_createState()) {
    if (state == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state);
  }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  XXH3_state_t* state;
};

FileWriter::FileWriter(const std::string& path, WriteHook hook)
    : path_(path), hook_(std::move(hook)), hash_(std::make_unique<Hash>()) {
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

void FileWriter::write(std::span<const std::byte> bytes) {
  check(descriptor_ >= 0, "write to a closed file");
  // Pieces, so that each is hashed while it is in the cache, and a kill or a hook can come between them.
  constexpr std::size_t kPiece = std::size_t{4} << 20U;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    const ssize_t written = ::write(descriptor_, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_failed("write", path_, errno);
    if (written == 0) throw_failed("write", path_, ENOSPC);
    const auto done = static_cast<std::size_t>(written);
    XXH3_64bits_update(hash_->state, piece.data(), done);
    size_ += done;
    bytes = bytes.subspan(done);
    report(hook_, "write", path_);
  }
}

void FileWriter::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void FileWriter::sync_and_close() {
  check(descriptor_ >= 0, "sync of a closed file");
  if (fsync(descriptor_) != 0) throw_failed("sync", path_, errno);
  // Some network file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) throw_failed("close", path_, errno);
  report(hook_, "sync", path_);
}

std::string FileWriter::hash() const {
  return hexadecimal(XXH3_64bits_digest(hash_->state));
}

std::string hash_of(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string hash_of(const MappedFile& file) {
  constexpr std::size_t kPiece = std::size_t{16} << 20U;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  for (std::span<const std::byte> rest = file.bytes(); !rest.empty();) {
    const std::span<const std::byte> piece = rest.first(std::min(rest.size(), kPiece));
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
    file.let_go();
    rest = rest.subspan(piece.size());
  }
  return hexadecimal(XXH3_64bits_digest(state.get()));
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
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_failed("rename to", to, errno);
  report(hook, "rename", to);
  sync_directory(directory, hook);
}

}  // namespace meshtrain
