#include "comm/shm/wait.h"

#include <fmt/ranges.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>

namespace meshtrain::shm {
namespace {

// Not FUTEX_PRIVATE: the word may be shared between processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

Patience Patience::of(const Area& area) {
  // A few microseconds where each rank has a core; otherwise the cores belong to those who are late.
  return Patience(area.ranks() <= area.cores() ? 100 : 0);
}

void pause_briefly() {
  __builtin_ia32_pause();
}

void let_others_run() {
  sched_yield();
}

void sleep_on(Bell& bell, std::uint32_t seen, std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (time - seconds).count()};
  futex(bell.word, FUTEX_WAIT, seen, &timeout);
}

void wake_sleepers(Bell& bell) noexcept {
  bell.sleeping.store(0);
  bell.word.fetch_add(1);
  futex(bell.word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr);
}

std::optional<std::string> Watch::fault(const Area& area, std::chrono::nanoseconds waited,
                                        std::chrono::nanoseconds deadline) const {
  const std::vector<int> late = missing();
  for (const int rank : late) {
    if (const auto absence = area.absence_of(rank)) return fmt::format("{} during {}", *absence, operation());
  }
  if (waited < deadline) return std::nullopt;
  std::string text = fmt::format("{} did not finish within {:.3g} s: {}", operation(),
                                 std::chrono::duration<double>(deadline).count(), standing());
  // Those that are late may wait themselves, for others of their stage or the stage before.
  const std::vector<int> silent = area.silent_for(deadline / 2);
  if (!silent.empty() && silent != late) {
    text += fmt::format("; of all ranks only {} {} for nobody", text_of(silent),
                        silent.size() == 1 ? "waits" : "wait");
  }
  return text;
}

std::string text_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, " "));
}

}  // namespace meshtrain::shm
