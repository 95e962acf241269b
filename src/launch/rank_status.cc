#include "launch/rank_status.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8_prefix.h"

namespace meshtrain {
namespace {

enum class State : std::uint32_t { kRunning, kSucceeded, kFailed };
static_assert(std::atomic<State>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t kMessageBytes = 8192;

}  // namespace

struct RankStatuses::Slot {
  std::atomic<State> state{State::kRunning};
  FailureKind kind = FailureKind::kUnexpected;
  std::uint32_t order = 0;
  std::uint32_t length = 0;
  std::array<char, kMessageBytes> message{};
};

// The slots follow.
struct alignas(alignof(std::max_align_t)) RankStatuses::Shared {
  std::atomic<std::uint32_t> failures{0};
};

RankStatuses::RankStatuses(int ranks)
    : bytes_(sizeof(Shared) + static_cast<std::size_t>(ranks) * sizeof(Slot)) {
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw_user_error("no shared memory for {} ranks: {}.", ranks, std::strerror(errno));
  }
  shared_ = std::construct_at(static_cast<Shared*>(memory));
  slots_ = {reinterpret_cast<Slot*>(shared_ + 1), static_cast<std::size_t>(ranks)};
  for (Slot& slot : slots_) std::construct_at(&slot);
}

RankStatuses::~RankStatuses() {
  munmap(shared_, bytes_);
}

void RankStatuses::set_succeeded(int rank) noexcept {
  slots_[static_cast<std::size_t>(rank)].state = State::kSucceeded;
}

void RankStatuses::set_failed(const RankFailure& failure) noexcept {
  Slot& slot = slots_[static_cast<std::size_t>(failure.rank)];
  const std::string_view message = utf8_prefix(failure.message, kMessageBytes);
  std::memcpy(slot.message.data(), message.data(), message.size());
  slot.length = static_cast<std::uint32_t>(message.size());
  slot.kind = failure.kind;
  slot.order = take_order();
  slot.state = State::kFailed;
}

bool RankStatuses::succeeded(int rank) const {
  return slots_[static_cast<std::size_t>(rank)].state == State::kSucceeded;
}

std::optional<RankFailure> RankStatuses::failure(int rank) const {
  const Slot& slot = slots_[static_cast<std::size_t>(rank)];
  if (slot.state != State::kFailed) return std::nullopt;
  return RankFailure{rank, slot.kind, std::string(slot.message.data(), slot.length), 0};
}

std::uint32_t RankStatuses::order(int rank) const {
  return slots_[static_cast<std::size_t>(rank)].order;
}

std::uint32_t RankStatuses::take_order() noexcept {
  return shared_->failures++;
}

}  // namespace meshtrain
