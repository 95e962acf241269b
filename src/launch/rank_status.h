// Memory in which forked ranks tell their supervisor how they ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "launch/failures.h"

namespace meshtrain {

class RankStatuses {
 public:
  // Before the fork. Throws UserError when the system refuses the memory.
  explicit RankStatuses(int ranks);
  RankStatuses(const RankStatuses&) = delete;
  RankStatuses& operator=(const RankStatuses&) = delete;
  ~RankStatuses();

  // In the rank, once. Of a message the first 8 KiB are kept.
  void set_succeeded(int rank) noexcept;
  void set_failed(const RankFailure& failure) noexcept;

  // In the supervisor, when the rank's process is gone.
  bool succeeded(int rank) const;
  std::optional<RankFailure> failure(int rank) const;
  // The place of that failure in the order of all, in whatever process they happen.
  std::uint32_t order(int rank) const;

  // The next place in that order.
  std::uint32_t take_order() noexcept;

 private:
  struct Slot;
  struct Shared;

  std::size_t bytes_;
  Shared* shared_;
  std::span<Slot> slots_;
};

}  // namespace meshtrain
