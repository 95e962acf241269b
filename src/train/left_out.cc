#include "train/left_out.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace meshtrain {

bool LeftOut::possible(const std::vector<SampleRange>& ranges) {
  std::int64_t end = 0;
  for (const SampleRange& range : ranges) {
    if (range.first < end || range.count <= 0) return false;
    if (__builtin_add_overflow(range.first, range.count, &end)) return false;
  }
  return true;
}

LeftOut::LeftOut(std::vector<SampleRange> ranges) : ranges_(std::move(ranges)) {
  check(possible(ranges_), "left-out ranges ascend and do not overlap");
}

std::vector<SampleRange> LeftOut::samples_at(std::int64_t position, std::int64_t count) const {
  std::vector<SampleRange> result;
  std::int64_t sample = position;
  for (const SampleRange& range : ranges_) {
    if (count == 0) break;
    if (sample < range.first) {
      const std::int64_t before = std::min(count, range.first - sample);
      result.push_back({.first = sample, .count = before});
      count -= before;
      sample += before;
    }
    sample += range.count;
  }
  if (count > 0) result.push_back({.first = sample, .count = count});
  return result;
}

std::vector<SampleRange> LeftOut::leave_out(std::int64_t position, std::int64_t count) {
  std::vector<SampleRange> added = samples_at(position, count);
  ranges_.insert(ranges_.end(), added.begin(), added.end());
  std::sort(ranges_.begin(), ranges_.end(),
            [](const SampleRange& a, const SampleRange& b) { return a.first < b.first; });
  return added;
}

}  // namespace meshtrain
