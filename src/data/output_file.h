// A file that appears whole or not at all: written as PATH.partial, renamed when committed. An error, an
// exception and the signals of base/temporary_file.h leave no PATH.partial; one that kill -9 left is written
// over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/temporary_file.h"

namespace meshtrain {

class OutputFile {
 public:
  // Throws UserError when PATH.partial cannot be created, or another process is writing it.
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // Removes PATH.partial when commit() was not reached.
  ~OutputFile();

  // Buffered. Throws RunError naming the file and what to do, e.g. when the disk is full.
  void write(std::span<const std::byte> bytes);
  template <class T>
  void write_value(T value) {
    write(std::as_bytes(std::span(&value, 1)));
  }
  // What write() has taken so far.
  std::int64_t size() const { return size_; }
  // Everything to disk (fsync). The file has its .partial name still.
  void finish();
  // After finish(): gives it its name, replacing what is there.
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* action) const;

  std::string path_;
  std::string partial_;
  std::string buffer_;
  std::int64_t size_ = 0;
  int fd_ = -1;
  std::optional<TemporaryFile> temporary_;  // PATH.partial, while it is ours
};

}  // namespace meshtrain
