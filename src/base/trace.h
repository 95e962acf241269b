// What a rank did when, for people to look at: named tracks of events, each appended to by one thread.
// telemetry/trace_file.h writes them.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace meshtrain {

enum class TraceKind : std::uint8_t { kCompute, kCommunication, kWait };
std::string_view name_of(TraceKind kind);

// Times are nanoseconds of this process's steady clock (base/stopwatch.h).
struct TraceEvent {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::uint32_t name = 0;  // TraceTrack::text_of
  TraceKind kind = TraceKind::kCompute;
};

// Used by one thread at a time; whoever reads it synchronizes with that thread first.
class TraceTrack {
 public:
  // Keeps the first `capacity` events and counts the others as lost.
  TraceTrack(std::string name, std::size_t capacity) : name_(std::move(name)), capacity_(capacity) {}
  TraceTrack(const TraceTrack&) = delete;
  TraceTrack& operator=(const TraceTrack&) = delete;

  const std::string& name() const { return name_; }

  // An event begins now, inside those that are open: they end in the opposite order (TraceSpan sees to it).
  // Returns what end() takes.
  std::size_t begin(TraceKind kind, std::string_view name);
  void end(std::size_t event);

  // In the order of their beginnings, so that an event comes before those inside it. One that is still open
  // ends where it begins.
  const std::deque<TraceEvent>& events() const { return events_; }
  const std::string& text_of(const TraceEvent& event) const { return *names_[event.name]; }
  std::int64_t lost() const { return lost_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::uint32_t index_of(std::string_view name);

  std::string name_;
  std::size_t capacity_;
  std::deque<TraceEvent> events_;
  std::int64_t lost_ = 0;
  // Names repeat: each is kept once.
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> indices_;
  std::vector<const std::string*> names_;  // keys of the map
};

// The tracks of one rank. Used by one thread, but for what others append to the tracks.
class Trace {
 public:
  // 24 bytes an event, so 24 MB a track.
  static constexpr std::size_t kEventsPerTrack = 1'000'000;
  explicit Trace(std::size_t events_per_track = kEventsPerTrack) : events_per_track_(events_per_track) {}

  // The track of this name, made when it is asked for first. It stays where it is.
  TraceTrack& track(std::string_view name);
  std::size_t events_per_track() const { return events_per_track_; }
  const std::deque<TraceTrack>& tracks() const { return tracks_; }
  std::int64_t lost() const;  // events of all tracks

 private:
  std::size_t events_per_track_;
  std::deque<TraceTrack> tracks_;
};

// An event that lasts as long as this object. Without a track it is nothing, and the name is not formatted.
class TraceSpan {
 public:
  TraceSpan() = default;
  template <class... Args>
  TraceSpan(TraceTrack* track, TraceKind kind, fmt::format_string<const Args&...> name, const Args&... args)
      : track_(track) {
    if (track_ == nullptr) return;
    fmt::memory_buffer text;
    fmt::format_to(fmt::appender(text), name, args...);
    event_ = track_->begin(kind, {text.data(), text.size()});
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (track_ != nullptr) track_->end(event_);
  }

 private:
  TraceTrack* track_ = nullptr;
  std::size_t event_ = 0;
};

}  // namespace meshtrain
