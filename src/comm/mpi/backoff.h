// How a waiting thread passes the time: it looks again at once, then lets others run, then sleeps ever longer.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace meshtrain::mpi {

class Backoff {
 public:
  // Where cores are scarce, those who have work come first.
  explicit Backoff(bool cores_are_scarce) : spins_(cores_are_scarce ? 0 : kSpins) {}

  void reset() { looks_ = 0, sleep_ = kShortest; }

  // Once in a while when looking is fast, always when it is slow.
  bool time_to_look_around() const { return looks_ >= spins_ + kYields || looks_ % 16 == 15; }

  void pause() {
    ++looks_;
    if (looks_ <= spins_) return;
    if (looks_ <= spins_ + kYields) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongest);
  }

 private:
  static constexpr int kSpins = 256;   // of some 100 ns
  static constexpr int kYields = 128;  // of some µs
  static constexpr std::chrono::microseconds kShortest{5};
  static constexpr std::chrono::microseconds kLongest{200};

  int spins_;
  int looks_ = 0;
  std::chrono::microseconds sleep_ = kShortest;
};

}  // namespace meshtrain::mpi
