// An ordered queue of operations on one device. On `cpu` an operation has run when the call that
// queued it returns; on `sim` only its cost is recorded. Code must not rely on either: it orders
// work by the stream alone.
#pragma once

#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"

namespace meshtrain {

class TraceTrack;

// What one operation costs. `flops` are those of matrix products and attention by the field's
// convention (2 per multiply-add, causal attention counted at half); `bytes` are the operands
// read and written once.
struct OpCost {
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  friend OpCost operator+(OpCost a, OpCost b) { return {a.flops + b.flops, a.bytes + b.bytes}; }
  friend OpCost operator-(OpCost a, OpCost b) { return {a.flops - b.flops, a.bytes - b.bytes}; }
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

// How products of bf16 numbers are computed on `cpu`. Either way they are exact and summed in fp32; the order
// of the sums differs.
enum class Bf16Products : std::uint8_t {
  kFastest,  // as is fastest on this processor (ops/processor.h)
  kFp32,     // as products of fp32 numbers
};

// Not thread-safe: one rank queues.
class Stream {
 public:
  // `threads` is the number of processor cores that an operation may use on `cpu`.
  Stream(Device& device, int threads) : device_(&device), threads_(threads) {
    if (kind() == DeviceKind::kCpu) pool_ = std::make_unique<ThreadPool>(threads);
  }

  Device& device() const { return *device_; }
  DeviceKind kind() const { return device_->kind(); }
  int threads() const { return threads_; }
  // Of `cpu` only.
  ThreadPool& pool() const { return *pool_; }

  Bf16Products bf16_products() const { return bf16_products_; }
  void set_bf16_products(Bf16Products products) { bf16_products_ = products; }

  void charge(OpCost cost) { total_ = total_ + cost; }
  // Since the stream was made.
  OpCost total() const { return total_; }

  // Where the thread that queues says what it does; null: nowhere. The track outlives its use.
  void set_trace(TraceTrack* track) { trace_ = track; }
  TraceTrack* trace() const { return trace_; }

 private:
  Device* device_;
  int threads_;
  std::unique_ptr<ThreadPool> pool_;
  Bf16Products bf16_products_ = Bf16Products::kFastest;
  OpCost total_;
  TraceTrack* trace_ = nullptr;
};

}  // namespace meshtrain
