#include "comm/shm/area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/cores.h"
#include "base/round_up.h"
#include "comm/shm/group_block.h"
#include "comm/shm/wait.h"
#include "comm/shm/world.h"

namespace meshtrain::shm {
namespace {

constexpr std::uint64_t kStatesBegin = round_up(sizeof(AreaHeader), kPage);
constexpr std::uint64_t kRegistryBegin = kStatesBegin + kMaxRanks * sizeof(RankState);
constexpr std::uint64_t kBlocksBegin = kRegistryBegin + kMaxGroups * sizeof(Registered);
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;

[[noreturn]] void throw_refusal(const std::string& what) {
  throw_user_error(
      "asked the system for the shared memory of the ranks, but {}: {}; raise the limits of this shell "
      "(ulimit -v, -f, -n), or run the ranks as threads",
      what, std::strerror(errno));
}

// Address space only, so that halves of what is refused may do.
Layout layout_for(int ranks, ShmArea::Ranks kind) {
  Layout layout;
  layout.ranks = ranks;
  if (kind == ShmArea::Ranks::kThreads) {
    layout.blocks_end = 4 * kGiB;
  } else {
    layout.blocks_end = 256 * kGiB;
    layout.heap_bytes = std::min(256 * kGiB, 16384 * kGiB / static_cast<std::uint64_t>(ranks));
  }
  return layout;
}

void place(Layout& layout) {
  layout.heap_bytes = layout.heap_bytes / kPage * kPage;
  layout.blocks_end = layout.blocks_end / kPage * kPage;
  layout.heap_begin = layout.blocks_end;
  layout.bytes = layout.heap_begin + layout.heap_bytes * static_cast<std::uint64_t>(layout.ranks);
}

std::byte* map_file(int file, std::uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

}  // namespace

std::shared_ptr<Area> Area::make(int ranks, Ranks kind) {
  if (ranks < 1 || ranks > kMaxRanks) {
    throw_user_error("asked for {} ranks on this host; 1 to {} are possible", ranks, kMaxRanks);
  }
  const int file = memfd_create("meshtrain", MFD_CLOEXEC);
  if (file < 0) throw_refusal("could not create it");
  Layout layout = layout_for(ranks, kind);
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  std::byte* base = nullptr;
  constexpr std::uint64_t kLeast = 64 * 1024 * kPage;
  for (;; layout.blocks_end /= 2, layout.heap_bytes /= 2) {
    place(layout);
    errno = EFBIG;  // beyond RLIMIT_FSIZE the system would send a signal
    const bool long_enough =
        (!limited || layout.bytes <= limit.rlim_cur) && ftruncate(file, static_cast<off_t>(layout.bytes)) == 0;
    if (long_enough && (base = map_file(file, layout.bytes)) != nullptr) break;
    if (layout.blocks_end / 2 < kLeast) {
      const int error = errno;
      close(file);
      errno = error;
      throw_refusal("it was refused");
    }
  }
  auto* placed = new (base) AreaHeader;
  placed->layout = layout;
  placed->blocks_top = kBlocksBegin;
  return std::make_shared<Area>(file, base, layout.bytes);
}

std::shared_ptr<Area> Area::attach(int file) {
  struct stat status {};
  std::byte* base =
      fstat(file, &status) == 0 ? map_file(file, static_cast<std::uint64_t>(status.st_size)) : nullptr;
  if (base == nullptr) {
    const int error = errno;
    close(file);
    errno = error;
    throw_refusal("could not map it");
  }
  return std::make_shared<Area>(file, base, static_cast<std::uint64_t>(status.st_size));
}

Area::~Area() {
  munmap(base_, bytes_);
  close(file_);
}

std::unique_ptr<World> Area::join(int rank, const WorldOptions& options) {
  return make_world(shared_from_this(), rank, options);
}

std::byte* Area::heap_of(int rank) const {
  return base_ + layout().heap_begin + layout().heap_bytes * static_cast<std::uint64_t>(rank);
}

std::uint64_t Area::publish(const void* data, std::int64_t bytes) const {
  if (of_threads()) return reinterpret_cast<std::uintptr_t>(data);
  if (bytes == 0) return 0;
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - base_);
  return offset >= layout().heap_begin && offset < bytes_ ? offset : kStaged;
}

void Area::fail(const std::string& reason) noexcept {
  AreaHeader& shared = header();
  std::uint32_t none = AreaHeader::kNone;
  if (!shared.failure.compare_exchange_strong(none, AreaHeader::kBeingWritten)) return;
  const std::size_t length = std::min(reason.size(), shared.reason.size() - 1);
  std::memcpy(shared.reason.data(), reason.data(), length);
  shared.reason[length] = '\0';
  shared.failure.store(AreaHeader::kWritten);
  wake_everyone();
}

void Area::throw_failure() const {
  // Whoever writes the reason may die meanwhile.
  for (int i = 0; i < 100 && header().failure.load() != AreaHeader::kWritten; ++i) usleep(1000);
  if (header().failure.load() != AreaHeader::kWritten)
    throw CommError("another rank failed and could not say why");
  throw CommError(header().reason.data());
}

void Area::wake_everyone() noexcept {
  for (std::uint64_t i = 0; i < kMaxGroups; ++i) {
    const std::uint64_t offset = registry()[i].offset.load();
    if (offset != 0) GroupBlock::wake_all(at(offset));
  }
}

RankState& Area::state_of(int rank) const {
  return reinterpret_cast<RankState*>(base_ + kStatesBegin)[rank];
}

Registered* Area::registry() const {
  return reinterpret_cast<Registered*>(base_ + kRegistryBegin);
}

namespace {

// Byte r of the file stands for rank r.
struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

void Area::enter(int rank) {
  check(rank >= 0 && rank < ranks(), "a rank outside its world");
  if (!of_threads()) {
    struct flock lock = lock_of(rank);
    if (fcntl(file_, F_SETLK, &lock) != 0) {
      if (errno != EACCES && errno != EAGAIN) throw_refusal("could not lock a byte of it");
      throw_user_error("rank {} joined twice, from two processes", rank);
    }
  }
  RankStatus absent = RankStatus::kAbsent;
  if (!state_of(rank).status.compare_exchange_strong(absent, RankStatus::kJoined)) {
    throw_user_error("rank {} joined twice", rank);
  }
  note_waiting(rank);
  for (const int core : available_cores()) {
    const auto word = static_cast<std::size_t>(core / 64);
    if (word < header().cores.size()) header().cores[word].fetch_or(std::uint64_t{1} << core % 64);
  }
}

int Area::cores() const {
  int count = 0;
  for (const auto& word : header().cores) count += std::popcount(word.load());
  return count;
}

void Area::leave(int rank) noexcept {
  state_of(rank).status.store(RankStatus::kLeft);
}

std::optional<std::string> Area::absence_of(int rank) const {
  const RankStatus status = state_of(rank).status.load();
  if (status == RankStatus::kLeft) return fmt::format("rank {} left the run", rank);
  if (status == RankStatus::kAbsent || of_threads()) return std::nullopt;
  struct flock lock = lock_of(rank);
  if (fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return std::nullopt;
  // Between the two looks it may have left in good order.
  if (state_of(rank).status.load() == RankStatus::kLeft) return fmt::format("rank {} left the run", rank);
  return fmt::format("rank {} died", rank);
}

namespace {

// Of all processes of the host.
std::int64_t now_in_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Area::note_waiting(int rank) const {
  state_of(rank).seen_waiting.store(now_in_nanoseconds(), std::memory_order_relaxed);
}

std::vector<int> Area::silent_for(std::chrono::nanoseconds time) const {
  const std::int64_t since = now_in_nanoseconds() - time.count();
  std::vector<int> found;
  for (int rank = 0; rank < ranks(); ++rank) {
    const RankState& state = state_of(rank);
    if (state.status.load() == RankStatus::kJoined && state.seen_waiting.load() < since) found.push_back(rank);
  }
  return found;
}

std::uint64_t Area::block_of(std::uint64_t key, std::uint64_t bytes, const WorldOptions& options) {
  key = std::max<std::uint64_t>(key, 1);  // 0 is an empty entry
  for (std::uint64_t probe = 0; probe < kMaxGroups; ++probe) {
    Registered& entry = registry()[(key + probe) % kMaxGroups];
    std::uint64_t found = 0;
    if (entry.key.compare_exchange_strong(found, key)) {
      const std::uint64_t offset = header().blocks_top.fetch_add(round_up(bytes, kPage));
      if (offset + bytes > layout().blocks_end)
        fail_and_throw("too many groups for the shared memory of the ranks");
      entry.offset.store(offset);
      return offset;
    }
    if (found != key) continue;
    // The first one is about to say where.
    const auto end = std::chrono::steady_clock::now() + options.deadline;
    while (entry.offset.load() == 0) {
      throw_if_failed();
      if (std::chrono::steady_clock::now() > end) fail_and_throw("a rank stopped while it made a group");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return entry.offset.load();
  }
  fail_and_throw(fmt::format("more than {} groups in a run", kMaxGroups));
}

void Area::discard(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace meshtrain::shm

namespace meshtrain {

std::shared_ptr<ShmArea> ShmArea::create(int ranks, Ranks kind) {
  return shm::Area::make(ranks, kind);
}

}  // namespace meshtrain
