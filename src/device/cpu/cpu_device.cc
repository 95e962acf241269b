#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "device/device.h"

namespace meshtrain {
namespace {

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }

 protected:
  std::byte* allocate_block(std::int64_t bytes) override {
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
    munmap(data, static_cast<std::size_t>(bytes));
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace meshtrain
