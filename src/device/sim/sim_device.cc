#include <limits>

#include "device/device.h"

namespace meshtrain {
namespace {

// Addresses count up from a base that no process maps, one block after the other.
class SimDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kSim; }
  std::int64_t available_bytes() const override { return std::numeric_limits<std::int64_t>::max(); }

 protected:
  std::byte* allocate_block(std::int64_t bytes, MemoryCategory /*category*/) override {
    const std::uintptr_t address = next_;
    next_ += static_cast<std::uintptr_t>((bytes + kAlignment - 1) / kAlignment * kAlignment);
    return reinterpret_cast<std::byte*>(address);
  }

  void release_block(std::byte* /*data*/, std::int64_t /*bytes*/) noexcept override {}

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 56U;
};

}  // namespace

std::unique_ptr<Device> make_sim_device() {
  return std::make_unique<SimDevice>();
}

}  // namespace meshtrain
