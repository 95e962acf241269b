#include "device/memory.h"

#include <algorithm>
#include <numeric>

namespace meshtrain {

std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "parameters", "gradients", "master", "optimizer", "activations", "workspace", "communication"};
  return kNames[static_cast<std::size_t>(category)];
}

std::int64_t MemoryUse::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

void MemoryLedger::add(MemoryCategory category, std::int64_t bytes) {
  current_[category] += bytes;
  peak_[category] = std::max(peak_[category], current_[category]);
  peak_total_ = std::max(peak_total_, current_.total());
}

void MemoryLedger::remove(MemoryCategory category, std::int64_t bytes) {
  current_[category] -= bytes;
}

}  // namespace meshtrain
