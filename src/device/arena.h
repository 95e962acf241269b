// A stack of tensors inside one block of device memory, laid out before the first step.
//
// A measuring arena has no block: it only records its high-water mark, on fake addresses. A step
// is first run over measuring arenas on the simulated device; the marks that it leaves are the
// capacities of the real arenas, so a step can neither run out nor hold a byte more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "device/device.h"
#include "device/tensor.h"

namespace meshtrain {

class Arena {
 public:
  // Unbounded; its tensors must never be dereferenced.
  static Arena measuring(std::string name);
  // Holds `capacity` bytes, allocated now.
  Arena(Device& device, MemoryCategory category, std::string name, std::int64_t capacity);
  // Holds `capacity` bytes of memory that outlives it, from `begin` on, a multiple of Device::kAlignment.
  Arena(std::string name, std::byte* begin, std::int64_t capacity);

  // Uninitialised, aligned to Device::kAlignment, valid until the stack is released below it.
  // Throws std::logic_error past the capacity: the plan and the step disagree.
  Tensor allocate(DType dtype, const Shape& shape);

  using Mark = std::int64_t;
  Mark mark() const { return used_; }
  void release(Mark mark);

  std::int64_t used() const { return used_; }
  std::int64_t peak() const { return peak_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  explicit Arena(std::string name) : name_(std::move(name)), measuring_(true) {}

  std::string name_;
  Buffer buffer_;
  std::byte* begin_ = nullptr;
  std::int64_t capacity_ = 0;
  bool measuring_ = false;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

// Releases to the mark it was made at.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace meshtrain
