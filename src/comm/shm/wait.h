// Waiting for other ranks: a short spin, then sleep in slices between which faults are looked for.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/shm/area.h"
#include "comm/waiting_time.h"

namespace meshtrain::shm {

// How often to look before sleeping: in vain, and with other ranks let in.
struct Patience {
  int spins = 0;
  int yields = 0;
  static Patience of(const Area& area);
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
  // Whom this rank waits for, now.
  virtual std::vector<int> missing() const = 0;
  // "ranks 0 1 had arrived, rank 2 had not".
  virtual std::string standing() const = 0;

  // What is wrong after so long, if anything.
  std::optional<std::string> fault(const Area& area, std::chrono::nanoseconds waited,
                                   std::chrono::nanoseconds deadline) const;

 protected:
  ~Watch() = default;
};

// Returns when done(), which whoever makes it true follows by ring_if. Throws CommError.
template <class Done>
void wait_for(Area& area, Bell& bell, const Patience& patience, std::chrono::nanoseconds deadline,
              const Watch& watch, const Done& done) {
  for (int i = 0; i < patience.spins; ++i) {
    if (done()) return;
    pause_briefly();
  }
  for (int i = 0; i < patience.yields; ++i) {
    if (done()) return;
    let_others_run();
  }
  constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(50);
  WaitingTime time;
  auto next_look = kSlice;
  for (std::chrono::nanoseconds waited{0};;) {
    const std::uint32_t seen = bell.word.load();
    bell.sleeping.store(1);
    if (done()) return;
    sleep_on(bell, seen, std::clamp(deadline - waited, std::chrono::nanoseconds{0}, kSlice));
    if (done()) return;
    area.throw_if_failed();
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
