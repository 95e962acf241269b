// The trace of a run: what its ranks did when, in trace.json of the run folder.
#pragma once

#include <cstdint>
#include <string>

#include "base/trace.h"
#include "comm/clock.h"
#include "telemetry/trace_file.h"
#include "train/assembly.h"

namespace meshtrain {

// "rank 3 (pp 0, dp 1, tp 1)", without axes of one rank: of the rank whose coordinates `mesh` has.
std::string rank_name(const DeviceMesh& mesh, int rank);

class RunTrace {
 public:
  explicit RunTrace(std::string path, std::size_t events_per_track = Trace::kEventsPerTrack)
      : path_(std::move(path)), trace_(events_per_track) {}

  // From here on the assembly's work is recorded. A collective call; the trace outlives the assembly.
  void begin(Assembly& assembly);
  // Nothing is recorded any more: the ranks' events go to the one that leads, piece by piece, which writes them
  // the file. A collective call, which waits for what is under way.
  void finish(Assembly& assembly);
  // After a failure: what this rank alone has, once the assembly and its threads are gone. Only the rank that
  // leads writes, and only if begin() was reached; what goes wrong here is not worth an error.
  void write_own() const noexcept;

 private:
  void render(const TraceText::Sink& sink, const ClockLine& clock, std::int64_t origin) const;

  std::string path_;
  Trace trace_;
  int rank_ = 0;
  std::string name_;           // "rank 3 (pp 0, dp 1, tp 1)"; empty before begin()
  std::int64_t begin_ns_ = 0;  // of this rank's clock, before its first event
  ClockOffset offset_;
};

}  // namespace meshtrain
