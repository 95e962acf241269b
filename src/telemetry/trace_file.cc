#include "telemetry/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace meshtrain {
namespace {

// Stands before each event; the file drops the first.
constexpr std::string_view kSeparator = ",\n";

std::string quoted(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (plain) return fmt::format("\"{}\"", text);
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Viewers show the thread that has its process' number first, and some take threads of one number, or 0, for
// one: each track of a trace has a number of its own.
int thread_number(int rank, int track) {
  constexpr int kTracksOfRank = 100;
  check(track >= 0 && track < kTracksOfRank, "a rank has fewer tracks in a trace");
  return (rank + 1) * kTracksOfRank + track;
}

// The format counts in microseconds.
std::string microseconds(std::int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

void TraceText::rank(int rank, std::string_view name, std::string_view label) {
  metadata(rank, 0, "process_name", fmt::format(R"("name":{})", quoted(name)));
  metadata(rank, 0, "process_sort_index", fmt::format(R"("sort_index":{})", rank));
  if (!label.empty()) metadata(rank, 0, "process_labels", fmt::format(R"("labels":{})", quoted(label)));
}

void TraceText::track(int rank, int track, std::string_view name) {
  metadata(rank, track, "thread_name", fmt::format(R"("name":{})", quoted(name)));
  metadata(rank, track, "thread_sort_index", fmt::format(R"("sort_index":{})", track));
}

void TraceText::metadata(int rank, int track, std::string_view what, std::string_view argument) {
  fmt::format_to(std::back_inserter(text_), R"({}{{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})",
                 kSeparator, rank, thread_number(rank, track), what, argument);
  pass_on_if_full();
}

void TraceText::event(int rank, int track, TraceKind kind, std::string_view name, std::int64_t begin_ns,
                      std::int64_t end_ns) {
  check(begin_ns >= 0 && begin_ns <= end_ns, "an event of a trace begins at 0 or later and before it ends");
  fmt::format_to(std::back_inserter(text_),
                 R"({}{{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{}}})", kSeparator, rank,
                 thread_number(rank, track), microseconds(begin_ns), microseconds(end_ns - begin_ns),
                 name_of(kind), quoted(name));
  pass_on_if_full();
}

void TraceText::pass_on_if_full() {
  if (text_.size() >= kChunkBytes) flush();
}

void TraceText::flush() {
  if (!text_.empty()) sink_(text_);
  text_.clear();
}

TraceFile::TraceFile(const std::string& path)
    : path_(path), temporary_(path + ".tmp"), file_(temporary_.path(), std::ios::binary) {
  file_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  check_written();
}

void TraceFile::write(std::string_view chunk) {
  if (std::exchange(empty_, false)) chunk.remove_prefix(kSeparator.size());
  file_.write(chunk.data(), static_cast<std::streamsize>(chunk.size()));
  check_written();
}

void TraceFile::close() {
  file_ << "\n]}\n";
  file_.close();
  check_written();
  if (std::rename(temporary_.path().c_str(), path_.c_str()) != 0) {
    throw_run_error("the trace cannot be named {}: {}.", path_, std::strerror(errno));
  }
  temporary_.keep();
}

void TraceFile::check_written() {
  if (!file_) throw_run_error("the trace {} cannot be written: {}.", path_, std::strerror(errno));
}

}  // namespace meshtrain
