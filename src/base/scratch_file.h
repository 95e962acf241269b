// A file without a name in the temporary folder, written once and then read as often as one likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace meshtrain {

class ScratchFile {
 public:
  // Throws RunError when the folder (TMPDIR, else /tmp) takes no file.
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // At the end. Throws RunError when the disk is full.
  void append(std::span<const std::byte> bytes);
  // `bytes.size()` bytes from `offset` on; they must have been written.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  int descriptor_ = -1;
};

}  // namespace meshtrain
