#include "gradsync/transient_pool.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"

namespace meshtrain::gradsync {
namespace {

// No process maps this address.
constexpr std::uintptr_t kMeasuringBase = std::uintptr_t{3} << 57U;

}  // namespace

TransientPool::TransientPool(Device& device, const std::optional<std::int64_t>& capacity)
    : measuring_(!capacity) {
  check(capacity.has_value() || device.is_simulated(), "only a simulated device measures");
  if (capacity) buffer_ = device.allocate(*capacity, MemoryCategory::kCommunication);
}

std::uintptr_t TransientPool::base() const {
  return measuring_ ? kMeasuringBase : reinterpret_cast<std::uintptr_t>(buffer_.data());
}

Tensor TransientPool::allocate(DType dtype, std::int64_t elements) {
  const std::int64_t bytes = round_up(std::max<std::int64_t>(elements, 1) * size_of(dtype), Device::kAlignment);
  std::int64_t begin = 0;
  for (const auto& [used_begin, used_end] : used_) {
    if (used_begin - begin >= bytes) break;
    begin = used_end;
  }
  if (!measuring_ && begin + bytes > capacity()) {
    throw std::logic_error(fmt::format("internal error: the pool planned for {} bytes was asked for {}",
                                       capacity(), begin + bytes));
  }
  used_[begin] = begin + bytes;
  peak_ = std::max(peak_, begin + bytes);
  recent_peak_ = std::max(recent_peak_, begin + bytes);
  return Tensor(reinterpret_cast<void*>(base() + static_cast<std::uintptr_t>(begin)), dtype, {elements});
}

void TransientPool::release(const Tensor& tensor) {
  check(used_.erase(offset_of(tensor)) == 1, "a block that the pool did not give");
}

std::int64_t TransientPool::take_peak() {
  return std::exchange(recent_peak_, used_.empty() ? 0 : used_.rbegin()->second);
}

std::int64_t TransientPool::offset_of(const Tensor& tensor) const {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.raw()) - base());
}

}  // namespace meshtrain::gradsync
