// A folder that a process has for itself.
#pragma once

#include <chrono>
#include <string>

namespace meshtrain {

// The one that has the name when the lock is got. Held until it goes, or the process ends in whatever way. Only
// those that ask for a lock are kept away: readers are not. Where there is nothing to lock (no such folder, a
// file system without locks of folders, as NFS) it holds nothing, and is_taken() is false.
class FolderLock {
 public:
  // Tries for so long: a process that was killed may take a moment to be gone.
  FolderLock(const std::string& folder, std::chrono::duration<double> patience);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Whether somebody else had it all the time, another FolderLock of this process included.
  bool is_taken() const { return taken_; }
  // Whether this is a lock of the folder that has this name now (or would be, where there is nothing to lock).
  bool is_of(const std::string& folder) const;
  // The name that the folder has now; empty where it has been removed, or is not known.
  std::string current_name() const;

 private:
  int descriptor_ = -1;
  bool taken_ = false;
};

}  // namespace meshtrain
