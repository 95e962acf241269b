// One clock for all ranks: how this rank's steady clock differs from rank 0's.
#pragma once

#include <cstdint>
#include <functional>

#include "base/stopwatch.h"
#include "comm/communicator.h"

namespace meshtrain {

using NanosecondClock = std::function<std::int64_t()>;

// Nanoseconds; the true offset lies within `error_ns` of `offset_ns`.
struct ClockOffset {
  std::int64_t at_ns = 0;      // when it was measured, by this rank's clock
  std::int64_t offset_ns = 0;  // what to add to this rank's clock to have rank 0's
  std::int64_t error_ns = 0;
};

// Each rank in turn asks rank 0 for its time; of several answers the one that came fastest counts, which is
// wrong by half its round trip at most (Cristian 1989, "Probabilistic clock synchronization"). Rank 0's own
// offset is 0. A collective call; takes some microseconds a rank.
ClockOffset clock_offset(Communicator& ranks, const NanosecondClock& clock = steady_nanoseconds);

// Between two measurements the clocks are taken to drift apart evenly.
class ClockLine {
 public:
  ClockLine(const ClockOffset& first, const ClockOffset& last) : first_(first), last_(last) {}
  // A time of this rank's clock as rank 0's. Keeps the order of times.
  std::int64_t of_rank0(std::int64_t own_ns) const;

 private:
  ClockOffset first_;
  ClockOffset last_;
};

}  // namespace meshtrain
