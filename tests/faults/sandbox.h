// Mounts that this process and its children alone see: they go when it ends, however it ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace meshtrain::faults {

// Takes this process, which must have one thread, into a mount namespace of its own, where it may mount; as
// root, or through a user namespace. Once a process; false where neither is allowed.
bool enter_private_mounts();

// A file system in memory of `bytes`, empty, at the folder `at`. Throws std::runtime_error. Unmounts when it
// goes.
class SmallDisk {
 public:
  SmallDisk(const std::filesystem::path& at, std::int64_t bytes);
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk();

  // Leaves `bytes` free of what is free or was filled before, rounded down to pages.
  void fill_but(std::int64_t bytes) const;
  // Leaves nothing free.
  void fill_rest() const { fill_but(0); }
  void empty() const;

 private:
  std::filesystem::path at_;
};

// Permissions do not hold root back. What a child calls between fork and exec to become somebody whom they do:
// nobody (65534) for root, else nothing.
void become_somebody_plain();

// Whether that somebody may run `binary`.
bool somebody_plain_may_run(const std::string& binary);

// Gives a folder and what is in it to that somebody.
void give_to_somebody_plain(const std::filesystem::path& folder);

}  // namespace meshtrain::faults
