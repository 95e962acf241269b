// Where things lie in the block of a group.
//
//   header | doorbells | progress | publications | offsets | mailboxes | staging | results | staging of pairs
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/round_up.h"
#include "comm/shm/layout.h"
#include "comm/shm/wait.h"

namespace meshtrain::shm {

// What a rank's tensors outside the shared heap pass through, chunk by chunk.
inline constexpr std::int64_t kStagingBytes = std::int64_t{512} << 10U;

class GroupBlock {
 public:
  GroupBlock() = default;
  GroupBlock(std::byte* base, int ranks) : base_(base), ranks_(ranks) {}

  // Ranks of one address space need no staging.
  static std::uint64_t bytes(int ranks, bool staging) {
    const std::int64_t k = ranks;
    return static_cast<std::uint64_t>(staging ? pair_begin(k) + k * k * 2 * pair_chunk_of(k)
                                              : staging_begin(k));
  }
  static void wake_all(std::byte* base) noexcept {
    GroupHeader& header = *reinterpret_cast<GroupHeader*>(base);
    const GroupBlock block(base, header.ranks.load());
    wake_sleepers(header.arrivals);
    wake_sleepers(header.completion);
    for (int rank = 0; rank < block.ranks_; ++rank) wake_sleepers(block.doorbell(rank));
  }

  GroupHeader& header() const { return *reinterpret_cast<GroupHeader*>(base_); }
  Bell& doorbell(int rank) const { return array<Bell>(doorbells_begin())[rank]; }
  Progress& progress(int rank) const { return array<Progress>(progress_begin(ranks_))[rank]; }
  Publication& publication(int rank, std::uint32_t parity) const {
    return array<Publication>(publications_begin(ranks_))[rank * 2 + static_cast<int>(parity)];
  }
  // Of an all-to-all: where in its tensor what `rank` sends to rank k begins; the end at [size]. Then the same
  // of what it receives. By parity of the operation: a late rank may still read those of the one before.
  std::int64_t* send_offsets(int rank, std::int64_t operation) const {
    return array<std::int64_t>(offsets_begin(ranks_)) + (rank * 2 + operation % 2) * 2 * (ranks_ + 1);
  }
  std::int64_t* receive_offsets(int rank, std::int64_t operation) const {
    return send_offsets(rank, operation) + ranks_ + 1;
  }
  Mailbox& mailbox(int from, int to) const {
    return array<Mailbox>(mailboxes_begin(ranks_))[from * ranks_ + to];
  }

  std::byte* staging(int rank) const { return base_ + staging_begin(ranks_) + rank * kStagingBytes; }
  std::byte* results() const { return staging(ranks_); }
  std::int64_t pair_chunk() const { return pair_chunk_of(ranks_); }
  std::byte* pair_staging(int from, int to, std::uint32_t half) const {
    const std::int64_t pair = std::int64_t{from} * ranks_ + to;
    return base_ + pair_begin(ranks_) + (pair * 2 + half) * pair_chunk();
  }

 private:
  template <class T>
  T* array(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  static constexpr std::int64_t doorbells_begin() { return sizeof(GroupHeader); }
  static std::int64_t progress_begin(std::int64_t k) {
    return doorbells_begin() + k * static_cast<std::int64_t>(sizeof(Bell));
  }
  static std::int64_t publications_begin(std::int64_t k) {
    return progress_begin(k) + k * static_cast<std::int64_t>(sizeof(Progress));
  }
  static std::int64_t offsets_begin(std::int64_t k) {
    return publications_begin(k) + 2 * k * static_cast<std::int64_t>(sizeof(Publication));
  }
  static std::int64_t mailboxes_begin(std::int64_t k) {
    return round_up(offsets_begin(k) + 4 * k * (k + 1) * std::int64_t{8}, kLine);
  }
  static std::int64_t staging_begin(std::int64_t k) {
    return round_up(mailboxes_begin(k) + k * k * static_cast<std::int64_t>(sizeof(Mailbox)), kPage);
  }
  static std::int64_t pair_begin(std::int64_t k) { return staging_begin(k) + (k + 1) * kStagingBytes; }
  // Long enough to be worth the signal, and in all not too much where ranks are many.
  static std::int64_t pair_chunk_of(std::int64_t k) {
    return std::clamp<std::int64_t>((std::int64_t{64} << 20U) / (k * k) / kPage * kPage, 16 << 10U, 256 << 10U);
  }

  std::byte* base_ = nullptr;
  int ranks_ = 0;
};

}  // namespace meshtrain::shm
