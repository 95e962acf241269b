// A rank's part of the shared heap: blocks that all processes of the host can read and write.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "comm/shm/area.h"
#include "device/device.h"

namespace meshtrain::shm {

// First fit, in whole pages; neighbours that are free become one. Takes blocks of the categories parameters,
// gradients and communication, and refuses what the heap or the machine's memory cannot hold.
class Heap final : public BlockSource {
 public:
  Heap(std::shared_ptr<Area> area, int rank);
  std::byte* take(std::int64_t bytes, MemoryCategory category) override;
  bool give_back(std::byte* data, std::int64_t bytes) noexcept override;

 private:
  std::shared_ptr<Area> area_;
  std::uint64_t begin_;  // offset in the file
  std::uint64_t end_;
  std::uint64_t most_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset → bytes
};

}  // namespace meshtrain::shm
