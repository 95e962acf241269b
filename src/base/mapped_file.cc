#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace meshtrain {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::vector<char> read_all(int fd, const std::string& path) {
  std::vector<char> content;
  char buffer[1U << 16U];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count == 0) return content;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_run_error("reading {} failed: {}", path, std::strerror(errno));
    content.insert(content.end(), buffer, buffer + count);
  }
}

}  // namespace

MappedFile MappedFile::open(const std::string& path, const std::string& what) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) {
    throw_user_error("{} \"{}\" cannot be read: {}. Check the path and its permissions.", what, path,
                     std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) throw_user_error("{} \"{}\": {}", what, path, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) throw_user_error("{} \"{}\" is a folder; a file is needed.", what, path);
  if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode)) {
    throw_user_error("{} \"{}\" is a device, which may have no end; name a file or a pipe.", what, path);
  }
  MappedFile result;
  if (!S_ISREG(status.st_mode)) {
    result.memory_ = read_all(file.fd, path);
    result.data_ = result.memory_.data();
    result.size_ = result.memory_.size();
    return result;
  }
  result.size_ = static_cast<std::size_t>(status.st_size);
  if (result.size_ == 0) return result;
  void* mapping = ::mmap(nullptr, result.size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapping == MAP_FAILED) {
    throw_run_error("{} \"{}\" ({} bytes) cannot be mapped into memory: {}", what, path, result.size_,
                    std::strerror(errno));
  }
  result.mapping_ = mapping;
  result.descriptor_ = std::exchange(file.fd, -1);
  result.name_ = fmt::format("{} \"{}\"", what, path);
  result.data_ = static_cast<const char*>(mapping);
  return result;
}

MappedFile MappedFile::open_regular(const std::string& path, const std::string& what) {
  struct stat status {};
  // Before it is opened: that waits where nobody writes to a pipe.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
    throw_user_error("{} \"{}\" is a pipe or a device; a file is needed.", what, path);
  }
  return open(path, what);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  mapping_ = std::exchange(other.mapping_, nullptr);
  descriptor_ = std::exchange(other.descriptor_, -1);
  name_ = std::move(other.name_);
  memory_ = std::move(other.memory_);
  data_ = mapping_ != nullptr ? static_cast<const char*>(mapping_) : memory_.data();
  size_ = std::exchange(other.size_, 0);
  other.data_ = nullptr;
  return *this;
}

void MappedFile::let_go() const {
  constexpr std::size_t kSmall = std::size_t{32} << 20U;
  if (mapping_ != nullptr && size_ > kSmall) ::madvise(mapping_, size_, MADV_DONTNEED);
}

void MappedFile::check_whole() const {
  if (mapping_ == nullptr) return;
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_run_error("{}: {}", name_, std::strerror(errno));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size >= size_) return;
  throw_run_error(
      "{} had {} bytes when it was opened and has {} now: something writes to it. Put a new version beside it, "
      "or "
      "rename it into place.",
      name_, size_, size);
}

MappedFile::~MappedFile() {
  close();
}

void MappedFile::close() {
  if (mapping_ == nullptr) return;
  ::munmap(mapping_, size_);
  ::close(descriptor_);
}

}  // namespace meshtrain
