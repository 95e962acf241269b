// What lies in the memory that connects the ranks. Everything begins as zeros; counters never go back.
//
//   header | ranks' states | registry of groups | group blocks … | heap of rank 0 | heap of rank 1 | …
//
// The file is sparse: what nobody touched costs nothing, so regions are as long as they may ever need to be.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace meshtrain::shm {

// Two cache lines: processors fetch them in pairs.
inline constexpr std::size_t kLine = 128;
inline constexpr std::uint64_t kPage = 4096;
inline constexpr int kMaxRanks = 1024;

// A word that changes when sleepers must look again, and whether somebody may sleep.
struct alignas(kLine) Bell {
  std::atomic<std::uint32_t> word;
  std::atomic<std::uint32_t> sleeping;
};

enum class RankStatus : std::uint32_t { kAbsent, kJoined, kLeft };

struct alignas(kLine) RankState {
  std::atomic<RankStatus> status;
  std::atomic<std::int64_t> seen_waiting;  // when a thread of it last was; steady clock, nanoseconds
};

// A group of the registry: `offset` of its block becomes known after its key.
struct Registered {
  std::atomic<std::uint64_t> key;
  std::atomic<std::uint64_t> offset;
};
inline constexpr std::uint64_t kMaxGroups = 1U << 16U;

// Offsets and lengths in the file.
struct Layout {
  std::int32_t ranks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t blocks_end = 0;
  std::uint64_t heap_begin = 0;
  std::uint64_t heap_bytes = 0;  // of one rank; 0: ranks are threads, and every address is good for all
};

struct alignas(kLine) AreaHeader {
  Layout layout;  // set before anyone joins
  alignas(kLine) std::atomic<std::uint64_t> blocks_top;
  std::array<std::atomic<std::uint64_t>, 16> cores;  // a bit for each that some rank may use
  // The first failure of the world.
  enum Failure : std::uint32_t { kNone, kBeingWritten, kWritten };
  alignas(kLine) std::atomic<std::uint32_t> failure;
  std::array<char, 4000> reason;
};

// --- A group block (GroupBlock knows what lies where). ---

struct GroupHeader {
  Bell arrivals;
  Bell completion;
  std::atomic<std::uint32_t> departed;
  std::atomic<std::int32_t> ranks;
};

// A round and a number below 2^32, changed as one.
struct RoundCount {
  std::atomic<std::uint64_t> value;
  static constexpr std::uint64_t pack(std::uint32_t round, std::uint32_t count) {
    return std::uint64_t{round} << 32U | count;
  }
  static constexpr std::uint32_t round_of(std::uint64_t value) {
    return static_cast<std::uint32_t>(value >> 32U);
  }
  static constexpr std::uint32_t count_of(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
};

// How far a rank is with its tasks. Lines apart: others read `done` in each round, `claimed` only if late.
struct Progress {
  alignas(kLine) RoundCount done;     // tasks that this rank has done, own and others'
  alignas(kLine) RoundCount claimed;  // tasks of its slice that somebody has begun
  std::atomic<std::uint32_t> busy;    // 1: holds a task
};

// Messages up to this length travel in the publication itself.
inline constexpr std::int64_t kInlineBytes = 1024;

// What a rank brings to a round. The first cache line says all but longer messages.
struct alignas(kLine) Publication {
  std::atomic<std::uint32_t> round;  // written last
  CommCall call;
  std::uint64_t in = 0;  // addresses as Area::publish gives them
  std::uint64_t out = 0;
  std::array<std::byte, kInlineBytes> data;
};

// Messages from one rank to another: a queue of two posts.
struct Post {
  DType dtype = DType::kU8;
  std::int64_t message_bytes = 0;
  std::int64_t chunk_bytes = 0;  // the message comes in one or more chunks
  std::uint64_t address = 0;     // kStaged: in the half of the pair's staging with the post's parity
};
struct alignas(kLine) Mailbox {
  std::atomic<std::uint32_t> posted;
  std::atomic<std::uint32_t> taken;
  std::array<Post, 2> posts;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<RankStatus>::is_always_lock_free);

}  // namespace meshtrain::shm
