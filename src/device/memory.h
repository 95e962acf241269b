// Accounting of device memory by category. Bytes are those requested of the device: what a plan
// predicts and what a run measures are this same count.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace meshtrain {

enum class MemoryCategory : std::uint8_t {
  kParameters,     // weights in the compute dtype
  kGradients,      // accumulation buffers, fp32 unless said
  kMaster,         // fp32 masters, where the compute dtype is narrower
  kOptimizer,      // optimizer state
  kActivations,    // what a forward pass keeps for its backward pass
  kWorkspace,      // temporaries within one layer, batches, tables, gradients of tied uses
  kCommunication,  // whole units of what is sharded, sums over micro-batches
};
inline constexpr std::size_t kMemoryCategories = 7;

std::string_view name_of(MemoryCategory category);

struct MemoryUse {
  std::array<std::int64_t, kMemoryCategories> bytes{};
  std::int64_t& operator[](MemoryCategory c) { return bytes[static_cast<std::size_t>(c)]; }
  std::int64_t operator[](MemoryCategory c) const { return bytes[static_cast<std::size_t>(c)]; }
  std::int64_t total() const;
  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;
};

class MemoryLedger {
 public:
  void add(MemoryCategory category, std::int64_t bytes);
  void remove(MemoryCategory category, std::int64_t bytes);
  const MemoryUse& current() const { return current_; }
  // The highest value each category reached on its own.
  const MemoryUse& peak() const { return peak_; }
  // The highest sum over all categories at one time.
  std::int64_t peak_total() const { return peak_total_; }

 private:
  MemoryUse current_;
  MemoryUse peak_;
  std::int64_t peak_total_ = 0;
};

}  // namespace meshtrain
