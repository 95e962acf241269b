// Files that do not outlive their use, nor a process that a signal ends.
#pragma once

#include <csignal>
#include <string>

namespace meshtrain {

// The name of a file that somebody else writes. The file is removed at the end of this object, unless it was
// kept, and by remove_temporary_files(), which the handlers of signals call: they know of a few at a time, of
// the process that made them, whose paths are not longer than the system takes.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  // The file has another name now, or is to stay.
  void keep();

 private:
  std::string path_;  // empty once it is kept
  int slot_ = -1;
};

// While it lives, the signals named below wait, for this thread: from making a file to having a TemporaryFile
// of it.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_{};
};

// Removes all of this process. Async-signal-safe.
void remove_temporary_files();

// Makes SIGINT, SIGTERM and SIGHUP remove the temporary files and then end the process as they do by default.
// One that this process ignores, as under nohup, stays ignored.
void remove_temporary_files_at_signals();

}  // namespace meshtrain
