// A file as read-only memory. 64-bit sizes; the operating system pages it in and out.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

class MappedFile {
 public:
  // Throws UserError naming `what` (e.g. "the tokenizer") and the file when it is missing, a folder or
  // unreadable, or a device. A pipe is read to its end into memory.
  static MappedFile open(const std::string& path, const std::string& what);
  // The same for files that may be damaged: a pipe or a device, which may have no end, is refused too.
  static MappedFile open_regular(const std::string& path, const std::string& what);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view text() const { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {reinterpret_cast<const std::byte*>(data_), size_}; }
  std::size_t size() const { return size_; }

  // Throws RunError naming the file when it has become shorter since: reading what is gone would end the
  // process (SIGBUS). Costs a system call; for files that others may write to while they are in use.
  void check_whole() const;

  // Gives back the memory of what was read so far; reading it again fetches it anew. A file much larger
  // than what is in use then does not count as memory of this process. Small files stay.
  void let_go() const;

 private:
  void close();

  const char* data_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;  // null: the bytes are in memory_, or there are none
  int descriptor_ = -1;      // of what is mapped
  std::string name_;         // the same, for messages
  std::vector<char> memory_;
};

}  // namespace meshtrain
