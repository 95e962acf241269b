// How long a rank has waited for others, as deadlines count it.
#pragma once

#include <algorithm>
#include <chrono>

namespace meshtrain {

// Asked again and again. Time for which this process itself did not run (Ctrl-Z, a suspended job) is nobody's
// delay: between two questions, at most 100 ms count.
class WaitingTime {
 public:
  std::chrono::nanoseconds passed() {
    const Clock::time_point now = Clock::now();
    total_ += std::min<std::chrono::nanoseconds>(now - asked_, kMostAtOnce);
    asked_ = now;
    return total_;
  }
  void restart() { *this = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kMostAtOnce{100};

  Clock::time_point asked_ = Clock::now();
  std::chrono::nanoseconds total_{0};
};

}  // namespace meshtrain
