// What a file system does without us: large writes of one plain file, then fsync, as `dd conv=fsync` writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

struct DiskSpeed {
  std::string folder;
  std::int64_t bytes = 0;
  double seconds = 0.0;
  double bytes_per_second() const { return static_cast<double>(bytes) / seconds; }
};

// Writes a file of so many bytes in `folder`, which must exist, and removes it. Throws RunError that names
// folder and cause.
DiskSpeed write_plain_file(const std::string& folder, std::int64_t bytes);

// Files of growing size in `folder`, or its nearest parent that exists: the last takes about a second. At most
// 1 GiB, and half of what is free. Throws RunError.
DiskSpeed measure_disk(const std::string& folder);

// Bytes that no file system makes smaller.
std::vector<std::byte> incompressible(std::int64_t bytes);

// Bytes a second that one thread copies from memory to memory that it has used before.
double measure_memory_copy();

}  // namespace meshtrain
