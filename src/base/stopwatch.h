// Wall time.
#pragma once

#include <chrono>
#include <cstdint>

namespace meshtrain {

// Of a clock that never goes back and starts anywhere (on Linux CLOCK_MONOTONIC, one for all processes).
inline std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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
