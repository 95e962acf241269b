// Wall time.
#pragma once

#include <chrono>

namespace meshtrain {

class Stopwatch {
 public:
  // Since construction or the last lap.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // The same, and starts anew.
  double lap() {
    const double result = seconds();
    start_ = Clock::now();
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace meshtrain
