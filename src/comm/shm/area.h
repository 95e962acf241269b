// The shared memory of a world, its failure, and who is still there. See layout.h for what lies in it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/engines.h"
#include "comm/shm/layout.h"

namespace meshtrain::shm {

class Area final : public ShmArea, public std::enable_shared_from_this<Area> {
 public:
  // Maps a new file. Throws UserError.
  static std::shared_ptr<Area> make(int ranks, Ranks kind);
  // Maps the file that another process made; owns `file`, a descriptor.
  static std::shared_ptr<Area> attach(int file);
  Area(int file, std::byte* base, std::uint64_t bytes) : file_(file), base_(base), bytes_(bytes) {}
  ~Area() override;

  int ranks() const override { return layout().ranks; }
  std::unique_ptr<World> join(int rank, const WorldOptions& options) override;
  void abort(const std::string& reason) noexcept override { fail(reason); }

  int file() const { return file_; }
  AreaHeader& header() const { return *reinterpret_cast<AreaHeader*>(base_); }
  const Layout& layout() const { return header().layout; }
  bool of_threads() const { return layout().heap_bytes == 0; }
  std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  std::byte* heap_of(int rank) const;

  // --- Addresses that each rank understands: offsets, or for threads plain addresses. ---
  // The memory is this rank's own; its contents go through staging.
  static constexpr std::uint64_t kStaged = ~std::uint64_t{0};
  std::uint64_t publish(const void* data, std::int64_t bytes) const;
  std::byte* resolve(std::uint64_t address) const {
    return of_threads() ? reinterpret_cast<std::byte*>(address) : base_ + address;
  }

  // --- The failure of the world: the first one counts. ---
  bool failed() const { return header().failure.load() != AreaHeader::kNone; }
  void throw_if_failed() const {
    if (failed()) throw_failure();
  }
  // Makes this the failure, unless there is one, and wakes all who wait.
  void fail(const std::string& reason) noexcept;
  [[noreturn]] void fail_and_throw(const std::string& reason) {
    fail(reason);
    throw_failure();
  }

  // --- Ranks. A process that lives holds a lock on its byte of the file; the kernel drops it. ---
  void enter(int rank);
  void leave(int rank) noexcept;
  // That the ranks which have joined may use.
  int cores() const;
  // "rank 3 died", "rank 3 left the run", or nothing.
  std::optional<std::string> absence_of(int rank) const;
  // A rank that waits says so in every slice of its sleep. One that is stopped or computes cannot.
  void note_waiting(int rank) const;
  // Those of the run that have not waited for so long.
  std::vector<int> silent_for(std::chrono::nanoseconds time) const;

  // --- Groups. ---
  // The offset of the block of this key; the first who asks makes it, and the others wait for that. `bytes`
  // is the same for all.
  std::uint64_t block_of(std::uint64_t key, std::uint64_t bytes, const WorldOptions& options);
  // Gives the pages of a range back; they read as zeros then.
  void discard(std::uint64_t offset, std::uint64_t bytes) const noexcept;

 private:
  [[noreturn]] void throw_failure() const;
  void wake_everyone() noexcept;
  RankState& state_of(int rank) const;
  Registered* registry() const;

  int file_;
  std::byte* base_;
  std::uint64_t bytes_;
};

}  // namespace meshtrain::shm
