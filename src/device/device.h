// A device owns memory and executes operations. `cpu` is real; `sim` hands out addresses that are
// never dereferenced, so that the same program runs on it for its counts alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/memory.h"

namespace meshtrain {

enum class DeviceKind : std::uint8_t { kCpu, kSim };

class Device;

// Owns one block of device memory. Movable; releases on destruction. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, MemoryCategory category, std::byte* data, std::int64_t bytes)
      : device_(&device), category_(category), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  friend class Device;
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  MemoryCategory category_ = MemoryCategory::kWorkspace;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Not thread-safe: one rank, one thread that allocates.
class Device {
 public:
  // Every block and every tensor in an arena starts on a multiple of this.
  static constexpr std::int64_t kAlignment = 64;

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;

  // Zero-filled block of `bytes`; counted exactly as asked. Throws UserError when it cannot be had.
  Buffer allocate(std::int64_t bytes, MemoryCategory category);

  // Bytes that can be had at this moment; a limit of the process counts.
  virtual std::int64_t available_bytes() const = 0;

  const MemoryLedger& memory() const { return ledger_; }

  bool is_simulated() const { return kind() == DeviceKind::kSim; }

 protected:
  virtual std::byte* allocate_block(std::int64_t bytes, MemoryCategory category) = 0;
  virtual void release_block(std::byte* data, std::int64_t bytes) noexcept = 0;

 private:
  friend class Buffer;
  MemoryLedger ledger_;
};

// Memory of another kind for some blocks of a CPU device, such as memory that ranks share. Used by any thread.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // A zero-filled block on a multiple of Device::kAlignment; nullptr: not from here.
  virtual std::byte* take(std::int64_t bytes, MemoryCategory category) = 0;
  // False: none of its blocks.
  virtual bool give_back(std::byte* data, std::int64_t bytes) noexcept = 0;
};

// The real host device. Blocks that `source` does not give come from anonymous mmap: zero pages, touched on
// first use.
std::unique_ptr<Device> make_cpu_device(std::shared_ptr<BlockSource> source = nullptr);

// Counts only.
std::unique_ptr<Device> make_sim_device();

}  // namespace meshtrain
