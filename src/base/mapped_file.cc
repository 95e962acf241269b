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
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Opening a pipe without a writer would wait for ever.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) throw_user_error("cannot open {}: {}.", path, std::strerror(errno));
  struct stat status {};
  if (fstat(file.number, &status) != 0) throw_user_error("cannot read {}: {}.", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw_user_error("cannot read {}: it is not a regular file.", path);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* memory = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number, 0);
  if (memory == MAP_FAILED) throw_user_error("cannot map {} into memory: {}.", path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace meshtrain
