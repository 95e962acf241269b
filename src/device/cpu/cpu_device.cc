#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "device/device.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// What the kernel would give without swapping: MemAvailable of /proc/meminfo.
std::int64_t system_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %ld kB", &kib) == 1) return kib * 1024;
  }
  return kUnlimited;
}

std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : kUnlimited;  // "max" is no number
}

// What the limit of this control group (a container's) leaves.
std::int64_t group_available() {
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::int64_t used = number_in("/sys/fs/cgroup/memory.current");
  return limit == kUnlimited || used == kUnlimited ? kUnlimited : std::max<std::int64_t>(limit - used, 0);
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::shared_ptr<BlockSource> source) : source_(std::move(source)) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::int64_t available_bytes() const override { return std::min(system_available(), group_available()); }

 protected:
  std::byte* allocate_block(std::int64_t bytes, MemoryCategory category) override {
    if (std::byte* block = source_ ? source_->take(bytes, category) : nullptr) return block;
    void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw_user_error(
          "asked the system for {} bytes of memory and got none ({}); lower train.micro_batch or "
          "data.seq_len, set recompute.policy = \"full\", or take a smaller model",
          bytes, std::strerror(errno));
    }
    // Large pages make the long streams of the optimizer and the weight products cheaper; a refusal
    // costs speed only.
    madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }

  void release_block(std::byte* data, std::int64_t bytes) noexcept override {
    if (source_ && source_->give_back(data, bytes)) return;
    munmap(data, static_cast<std::size_t>(bytes));
  }

 private:
  std::shared_ptr<BlockSource> source_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(std::shared_ptr<BlockSource> source) {
  return std::make_unique<CpuDevice>(std::move(source));
}

}  // namespace meshtrain
