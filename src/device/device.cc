#include "device/device.h"

#include "base/error.h"

namespace meshtrain {

Buffer::~Buffer() {
  if (device_ == nullptr) return;
  device_->release_block(data_, bytes_);
  device_->ledger_.remove(category_, bytes_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(category_, other.category_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

Buffer Device::allocate(std::int64_t bytes, MemoryCategory category) {
  check(bytes >= 0, "negative allocation");
  if (bytes == 0) return {};
  std::byte* data = allocate_block(bytes, category);
  ledger_.add(category, bytes);
  return Buffer(*this, category, data, bytes);
}

}  // namespace meshtrain
