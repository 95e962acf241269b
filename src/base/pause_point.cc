#include "base/pause_point.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr const char* kVariable = "MESHTRAIN_PAUSE_AT";

// Of a step, then of the writing of a checkpoint (checkpoint/file_writer.h: WriteHook).
constexpr std::array<std::string_view, 11> kPhases = {"micro-step", "collective",  "copy",  "create",
                                                      "write",      "before sync", "sync",  "before rename",
                                                      "rename",     "uncommit",    "remove"};

// Cuts `text` behind the next colon; false where there is none.
bool take_field(std::string_view& text, std::string_view& field) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  field = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  return true;
}

template <class Number>
bool read_number(std::string_view text, Number least, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= least;
}

}  // namespace

PausePoint::PausePoint(std::string_view value) {
  std::string_view rest = value;
  std::string_view phase;
  std::string_view step;
  std::string_view rank;
  if (!take_field(rest, phase) || !take_field(rest, step) || !take_field(rest, rank) || rest.empty() ||
      !read_number<std::int64_t>(step, 1, step_) || !read_number(rank, 0, rank_)) {
    throw_user_error(
        "{} is \"{}\": it should be PHASE:STEP:RANK:FILE, such as \"write:100:0:/tmp/paused\", with a step "
        "from 1 "
        "and a rank from 0 on.",
        kVariable, value);
  }
  if (std::find(kPhases.begin(), kPhases.end(), phase) == kPhases.end()) {
    throw_user_error("{} is \"{}\": there is no phase \"{}\"; the phases are {}.", kVariable, value, phase,
                     fmt::join(kPhases, ", "));
  }
  phase_ = phase;
  file_ = rest;
}

std::unique_ptr<PausePoint> PausePoint::from_environment() {
  const char* const value = std::getenv(kVariable);
  return value == nullptr || *value == '\0' ? nullptr : std::make_unique<PausePoint>(value);
}

void PausePoint::reach(std::string_view phase, std::int64_t step, int rank) {
  if (rank != rank_ || step != step_ || phase != phase_ || done_.exchange(true)) return;
  const int file = open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) return;
  const std::string text = fmt::format("{}\n", getpid());
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) close(file);
  if (!written) throw_run_error("{}: cannot write {}: {}.", kVariable, file_, std::strerror(error));
  while (access(file_.c_str(), F_OK) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace meshtrain
