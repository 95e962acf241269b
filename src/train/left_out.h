// Samples that a run does not train on: those of steps that were rolled back.
#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

// A run counts the samples that it trains on: its positions. Sample p of the run is the p-th of the sampler's
// order that is not left out here, so that a step covers positions [s·global_batch, (s+1)·global_batch)
// whatever was left out before it.
class LeftOut {
 public:
  LeftOut() = default;
  // Ranges of the sampler's order, ascending, none empty, none overlapping; `possible` says whether they are.
  explicit LeftOut(std::vector<SampleRange> ranges);
  static bool possible(const std::vector<SampleRange>& ranges);

  const std::vector<SampleRange>& ranges() const { return ranges_; }
  // Where the sampler has positions [position, position + count): ranges of its order, in order.
  std::vector<SampleRange> samples_at(std::int64_t position, std::int64_t count) const;
  // Leaves these positions out from now on; the position stays and means the samples behind them. Returns what
  // was left out. Positions before `position` keep their meaning.
  std::vector<SampleRange> leave_out(std::int64_t position, std::int64_t count);

  friend bool operator==(const LeftOut&, const LeftOut&) = default;

 private:
  std::vector<SampleRange> ranges_;
};

}  // namespace meshtrain
