// Waiting for other ranks: some looks, then sleep in slices between which faults are looked for.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/area.h"
#include "comm/waiting_time.h"

namespace meshtrain::shm {

// How a rank looks before it sleeps: some looks on its core; then, for some tens of microseconds, with others
// let run between looks. Where those keep the core for long (a program that computes), that is no bargain:
// a sleeper gets the core back sooner than one that yields.
class Patience {
 public:
  static Patience of(const Area& area);
  int spins() const { return spins_; }
  // True as soon as done().
  template <class Done>
  bool look(const Done& done);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kYielding{50};
  static constexpr std::chrono::microseconds kLongYield{500};
  static constexpr int kSkipped = 256;  // waits

  explicit Patience(int spins) : spins_(spins) {}

  int spins_;
  int skip_ = 0;  // so many waits do not yield
};

void pause_briefly();
void let_others_run();
// Sleeps while `bell.word` is `seen`, for `time` at most.
void sleep_on(Bell& bell, std::uint32_t seen, std::chrono::nanoseconds time);
// Makes them look again.
void wake_sleepers(Bell& bell) noexcept;
// After a store, in sequentially consistent order, that somebody may wait for: either he saw it before he
// slept, or this sees that he sleeps. Looks at holds() only then.
template <class Holds>
void ring_if(Bell& bell, const Holds& holds) {
  if (bell.sleeping.load() != 0 && holds()) wake_sleepers(bell);
}

// What a wait is about. Ranks are world ranks.
class Watch {
 public:
  // "all-reduce sum of 4 fp32 (operation 3 of group "dp", ranks 0 1)".
  virtual std::string operation() const = 0;
  virtual int this_rank() const = 0;
  // Whom it waits for, now.
  virtual std::vector<int> missing() const = 0;
  // "ranks 0 1 had arrived, rank 2 had not".
  virtual std::string standing() const = 0;

  // What is wrong after so long, if anything.
  std::optional<std::string> fault(const Area& area, std::chrono::nanoseconds waited,
                                   std::chrono::nanoseconds deadline) const;

 protected:
  ~Watch() = default;
};

template <class Done>
bool Patience::look(const Done& done) {
  if (done()) return true;
  for (int i = 0; i < spins_; ++i) {
    pause_briefly();
    if (done()) return true;
  }
  if (skip_ > 0) {
    --skip_;
    return false;
  }
  const auto begin = Clock::now();
  for (auto last = begin; last - begin < kYielding;) {
    let_others_run();
    if (done()) return true;
    const auto now = Clock::now();
    if (now - last > kLongYield) skip_ = kSkipped;
    last = now;
  }
  return false;
}

// Returns when done(), which whoever makes it true follows by ring_if. Throws CommError.
template <class Done>
void wait_for(Area& area, Bell& bell, Patience& patience, std::chrono::nanoseconds deadline, const Watch& watch,
              const Done& done) {
  if (patience.look(done)) return;
  constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
  WaitingTime time;
  auto next_look = kSlice;
  for (std::chrono::nanoseconds waited{0};;) {
    area.note_waiting(watch.this_rank());
    const std::uint32_t seen = bell.word.load();
    bell.sleeping.store(1);
    if (done()) return;
    sleep_on(bell, seen, std::clamp(deadline - waited, std::chrono::nanoseconds{0}, kSlice));
    if (done()) return;
    if (area.failed()) {
      // A rank that failed later had been through here, and then so are the others.
      if (done()) return;
      area.throw_if_failed();
    }
    waited = time.passed();
    if (waited < std::min(next_look, deadline)) continue;
    next_look = waited + kSlice;
    const std::optional<std::string> fault = watch.fault(area, waited, deadline);
    // A rank may have done its part and left in between.
    if (fault && !done()) area.fail_and_throw(*fault);
  }
}

// "rank 3", "ranks 0 1 2".
std::string text_of(const std::vector<int>& ranks);

}  // namespace meshtrain::shm
