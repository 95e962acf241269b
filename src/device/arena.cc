#include "device/arena.h"

#include <algorithm>

namespace meshtrain {
namespace {

// No process maps this address, so a kernel that touches a measured tensor faults at once.
constexpr std::uintptr_t kMeasuringBase = std::uintptr_t{1} << 57U;

}  // namespace

Arena Arena::measuring(std::string name) {
  return Arena(std::move(name));
}

Arena::Arena(Device& device, MemoryCategory category, std::string name, std::int64_t capacity)
    : name_(std::move(name)),
      buffer_(device.allocate(capacity, category)),
      begin_(buffer_.data()),
      capacity_(capacity) {}

Arena::Arena(std::string name, std::byte* begin, std::int64_t capacity)
    : name_(std::move(name)), begin_(begin), capacity_(capacity) {}

Tensor Arena::allocate(DType dtype, const Shape& shape) {
  constexpr std::int64_t kAlign = Device::kAlignment;
  const std::int64_t bytes = (shape.numel() * size_of(dtype) + kAlign - 1) / kAlign * kAlign;
  if (!measuring_ && used_ + bytes > capacity()) {
    throw std::logic_error(fmt::format("internal error: arena '{}' planned for {} bytes was asked for {}",
                                       name_, capacity(), used_ + bytes));
  }
  const auto base = measuring_ ? kMeasuringBase : reinterpret_cast<std::uintptr_t>(begin_);
  void* data = reinterpret_cast<void*>(base + static_cast<std::uintptr_t>(used_));
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return Tensor(data, dtype, shape);
}

void Arena::release(Mark mark) {
  check(mark <= used_, "arena released above its top");
  used_ = mark;
}

}  // namespace meshtrain
