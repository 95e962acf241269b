// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace meshtrain {

// The bytes stay valid while the object lives, provided that nobody shortens the file. Movable.
class MappedFile {
 public:
  // Throws UserError naming `path` when it cannot be read or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace meshtrain
