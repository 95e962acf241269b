// Traces as files: the Trace Event Format (JSON object form) that Perfetto and chrome://tracing open. A process
// is a rank, a thread is a track.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "base/temporary_file.h"
#include "base/trace.h"

namespace meshtrain {

// Writes events as text, in chunks. Ranks may write apart from each other: chunks in any order make a file,
// as long as each is kept whole.
class TraceText {
 public:
  using Sink = std::function<void(std::string_view chunk)>;
  // Chunks have about kChunkBytes.
  explicit TraceText(Sink sink) : sink_(std::move(sink)) {}
  static constexpr std::size_t kChunkBytes = 1 << 20;

  // Names may hold anything. `label` stands beside the rank's name; may be empty.
  void rank(int rank, std::string_view name, std::string_view label);
  // Tracks of a rank count from 0 to 99, in the order in which viewers show them.
  void track(int rank, int track, std::string_view name);
  // 0 ≤ begin_ns ≤ end_ns. Of one track, events come in the order of their beginnings, an outer one before
  // those inside it, and two of them are apart or one inside the other.
  void event(int rank, int track, TraceKind kind, std::string_view name, std::int64_t begin_ns,
             std::int64_t end_ns);
  // The last chunk.
  void flush();

 private:
  void metadata(int rank, int track, std::string_view what, std::string_view argument);
  void pass_on_if_full();

  Sink sink_;
  std::string text_;
};

// The file. It has its name once it is closed; before, that name with ".tmp" at its end, and nothing stays when
// writing fails. Throws RunError that names the file.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path);
  void write(std::string_view chunk);  // of a TraceText
  void close();

 private:
  void check_written();

  std::string path_;
  TemporaryFile temporary_;
  std::ofstream file_;
  bool empty_ = true;
};

}  // namespace meshtrain
