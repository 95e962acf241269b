// Whole units that live for a part of a step: gathered weights, gradients before they are reduced. Blocks lie
// first fit in one buffer, whose size is what a step on the simulated device needed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "device/device.h"
#include "device/tensor.h"

namespace meshtrain::gradsync {

class TransientPool {
 public:
  // Without a capacity it only measures, on fake addresses.
  TransientPool(Device& device, const std::optional<std::int64_t>& capacity);

  // Uninitialised, flat. Throws std::logic_error past the capacity: the plan and the step disagree.
  Tensor allocate(DType dtype, std::int64_t elements);
  void release(const Tensor& tensor);

  std::int64_t peak() const { return peak_; }
  // The same since the last call.
  std::int64_t take_peak();
  // Where a block lies.
  std::int64_t offset_of(const Tensor& tensor) const;
  std::int64_t capacity() const { return buffer_.bytes(); }

 private:
  std::uintptr_t base() const;

  bool measuring_;
  Buffer buffer_;
  std::map<std::int64_t, std::int64_t> used_;  // begin → end
  std::int64_t peak_ = 0;
  std::int64_t recent_peak_ = 0;
};

}  // namespace meshtrain::gradsync
