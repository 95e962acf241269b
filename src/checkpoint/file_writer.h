// Files that survive a crash: every byte is checked on its way out and on the disk before a step counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace meshtrain {

// Called at each step of writing with its name and what it is about: "create", "write", "before sync", "sync",
// "before rename", "rename" …; the names are those of what has just been done, but for the befores. A test
// throws from it or dies in it to stop there. May be empty.
using WriteHook = std::function<void(std::string_view step, std::string_view path)>;
void report(const WriteHook& hook, std::string_view step, std::string_view path);

// A new file, or one emptied, that is written from front to back. Errors are RunErrors that name the
// path and the cause. Not thread-safe.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path, WriteHook hook = {});
  ~FileWriter();  // closes; what has not been synced may be lost
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Room for so many bytes on the disk, where the file system can tell beforehand.
  void reserve(std::uint64_t bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Everything written is on the disk when this returns. Nothing may be written after it.
  void sync_and_close();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  WriteHook hook_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t started_ = 0;  // bytes whose way to the disk has begun
};

// A whole file.
void write_and_sync(const std::string& path, std::string_view text, const WriteHook& hook = {});

// Makes renames, new files and removals in `directory` survive a crash.
void sync_directory(const std::string& directory, const WriteHook& hook = {});

// Renames over `to`, which both lie in `directory`, and syncs it.
void rename_and_sync(const std::string& directory, const std::string& from, const std::string& to,
                     const WriteHook& hook = {});

}  // namespace meshtrain
