#include "comm/shm/heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/round_up.h"

namespace meshtrain::shm {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20U;

std::uint64_t length_of(std::int64_t bytes) {
  return static_cast<std::uint64_t>(round_up(bytes, kPage));
}

// Blocks that large pages may carry begin on one.
std::uint64_t aligned(std::uint64_t offset, std::uint64_t length) {
  return length < kHugePage ? offset : static_cast<std::uint64_t>(round_up(offset, kHugePage));
}

}  // namespace

Heap::Heap(std::shared_ptr<Area> area, int rank)
    : area_(std::move(area)),
      begin_(static_cast<std::uint64_t>(area_->heap_of(rank) - area_->at(0))),
      end_(begin_ + area_->layout().heap_bytes),
      most_(static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
            static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE))) {
  free_.emplace(begin_, end_ - begin_);
  // A refusal costs speed only.
  madvise(area_->at(begin_), end_ - begin_, MADV_HUGEPAGE);
}

std::byte* Heap::take(std::int64_t bytes, MemoryCategory category) {
  if (category != MemoryCategory::kParameters && category != MemoryCategory::kGradients &&
      category != MemoryCategory::kCommunication) {
    return nullptr;
  }
  const std::uint64_t length = length_of(bytes);
  if (length > most_) return nullptr;
  const std::lock_guard lock(mutex_);
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [begin, size] = *hole;
    const std::uint64_t block = aligned(begin, length);
    if (block + length > begin + size) continue;
    free_.erase(hole);
    if (block > begin) free_.emplace(begin, block - begin);
    if (block + length < begin + size) free_.emplace(block + length, begin + size - block - length);
    return area_->at(block);
  }
  return nullptr;
}

bool Heap::give_back(std::byte* data, std::int64_t bytes) noexcept {
  const auto offset = static_cast<std::uint64_t>(data - area_->at(0));
  if (offset < begin_ || offset >= end_) return false;
  std::uint64_t length = length_of(bytes);
  area_->discard(offset, length);
  const std::lock_guard lock(mutex_);
  std::uint64_t begin = offset;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      length += previous->second;
      free_.erase(previous);
    }
  }
  free_.emplace(begin, length);
  return true;
}

}  // namespace meshtrain::shm
