#include "train/run_trace.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "base/log.h"
#include "comm/agreement.h"

namespace meshtrain {
namespace {

std::int64_t value_of_first(Communicator& ranks, std::int64_t value) {
  ranks.broadcast(Tensor(&value, DType::kI64, {1}), 0, Traffic::kOther);
  return value;
}

// Brings chunks of text from each rank to rank 0. Every rank says to all how long its next chunk is, so that
// nobody waits for longer than one takes; none follows where it says 0. Collective calls, for each rank in
// turn.
class ChunkTurn {
 public:
  ChunkTurn(Communicator& ranks, int sender) : ranks_(ranks), sender_(sender) {}

  // Of the sender.
  void send(std::string_view chunk) {
    announce(static_cast<std::int64_t>(chunk.size()));
    // The transfer only reads.
    auto* bytes = const_cast<char*>(chunk.data());
    ranks_.send({bytes, DType::kU8, {static_cast<std::int64_t>(chunk.size())}}, 0, Traffic::kOther);
  }
  void end() { announce(0); }

  // Of all others, of which rank 0 gets the chunks.
  void follow(const TraceText::Sink& sink) {
    std::string chunk;
    while (const std::int64_t length = announce(0)) {
      if (ranks_.rank() != 0) continue;
      chunk.resize(static_cast<std::size_t>(length));
      ranks_.receive({chunk.data(), DType::kU8, {length}}, sender_, Traffic::kOther);
      sink(chunk);
    }
  }

 private:
  std::int64_t announce(std::int64_t length) {
    ranks_.broadcast(Tensor(&length, DType::kI64, {1}), sender_, Traffic::kOther);
    return length;
  }

  Communicator& ranks_;
  int sender_;
};

}  // namespace

std::string rank_name(const DeviceMesh& mesh, int rank) {
  std::string place;
  for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
    if (axis->size == 1) continue;
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", axis->name, mesh.coordinate(axis->name));
  }
  return place.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, place);
}

void RunTrace::begin(Assembly& assembly) {
  Communicator& ranks = *assembly.groups.control;
  rank_ = ranks.rank();
  name_ = rank_name(assembly.groups.mesh, rank_);
  begin_ns_ = steady_nanoseconds();
  offset_ = clock_offset(ranks);
  assembly.set_trace(&trace_);
}

void RunTrace::finish(Assembly& assembly) {
  assembly.set_trace(nullptr);
  Communicator& ranks = *assembly.groups.control;
  const ClockLine clock(offset_, clock_offset(ranks));
  const std::int64_t origin = value_of_first(ranks, begin_ns_);
  std::optional<TraceFile> file;
  if (rank_ == 0) {
    file.emplace(path_);
    render([&](std::string_view chunk) { file->write(chunk); }, clock, origin);
  }
  for (int sender = 1; sender < ranks.size(); ++sender) {
    ChunkTurn turn(ranks, sender);
    if (sender == rank_) {
      render([&](std::string_view chunk) { turn.send(chunk); }, clock, origin);
      turn.end();
    } else {
      turn.follow([&](std::string_view chunk) { file->write(chunk); });
    }
  }
  if (file) file->close();
  const std::int64_t lost = sum_of_ranks(ranks, trace_.lost(), Traffic::kOther);
  if (file && lost > 0) {
    notice("{} lacks the last {} events: it keeps the first {} of each track", path_, lost,
           trace_.events_per_track());
  }
}

void RunTrace::write_own() const noexcept {
  if (name_.empty() || rank_ != 0) return;
  try {
    TraceFile file(path_);
    render([&](std::string_view chunk) { file.write(chunk); }, ClockLine(offset_, offset_), begin_ns_);
    file.close();
  } catch (const std::exception&) {  // what went wrong first is what is reported
  }
}

void RunTrace::render(const TraceText::Sink& sink, const ClockLine& clock, std::int64_t origin) const {
  TraceText text(sink);
  std::string label = rank_ == 0 ? "" : fmt::format("clock within {} µs", (offset_.error_ns + 999) / 1000);
  if (trace_.lost() > 0) {
    label += fmt::format("{}the last {} events are missing", label.empty() ? "" : ", ", trace_.lost());
  }
  text.rank(rank_, name_, label);
  // What the clocks differ by is known to a few microseconds; nothing is before the beginning for that.
  const auto time = [&](std::int64_t own) { return std::max<std::int64_t>(clock.of_rank0(own) - origin, 0); };
  int number = 0;
  for (const TraceTrack& track : trace_.tracks()) {
    text.track(rank_, number, track.name());
    for (const TraceEvent& event : track.events()) {
      text.event(rank_, number, event.kind, track.text_of(event), time(event.begin_ns), time(event.end_ns));
    }
    ++number;
  }
  text.flush();
}

}  // namespace meshtrain
