#include "base/trace.h"

#include <algorithm>
#include <array>

#include "base/stopwatch.h"

namespace meshtrain {
namespace {

constexpr auto kLost = static_cast<std::size_t>(-1);

}  // namespace

std::string_view name_of(TraceKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"compute", "communication", "wait"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t TraceTrack::begin(TraceKind kind, std::string_view name) {
  if (events_.size() >= capacity_) {
    ++lost_;
    return kLost;
  }
  const std::uint32_t index = index_of(name);
  const std::int64_t now = steady_nanoseconds();
  events_.push_back({.begin_ns = now, .end_ns = now, .name = index, .kind = kind});
  return events_.size() - 1;
}

void TraceTrack::end(std::size_t event) {
  if (event != kLost) events_[event].end_ns = steady_nanoseconds();
}

std::uint32_t TraceTrack::index_of(std::string_view name) {
  if (const auto known = indices_.find(name); known != indices_.end()) return known->second;
  const auto added = indices_.emplace(name, static_cast<std::uint32_t>(names_.size())).first;
  names_.push_back(&added->first);
  return added->second;
}

TraceTrack& Trace::track(std::string_view name) {
  const auto found = std::find_if(tracks_.begin(), tracks_.end(),
                                  [name](const TraceTrack& track) { return track.name() == name; });
  return found != tracks_.end() ? *found : tracks_.emplace_back(std::string(name), events_per_track_);
}

std::int64_t Trace::lost() const {
  std::int64_t sum = 0;
  for (const TraceTrack& track : tracks_) sum += track.lost();
  return sum;
}

}  // namespace meshtrain
