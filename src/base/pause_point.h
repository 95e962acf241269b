// A place in a run where one rank waits until it is let go on: for tests that strike a run from outside and
// must know where it stands.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace meshtrain {

// Named by the environment variable MESHTRAIN_PAUSE_AT=PHASE:STEP:RANK:FILE. The first time that rank RANK gets
// to PHASE of step STEP (of a checkpoint: the step that is saved), it creates FILE, writes its process id and a
// newline into it, and waits until FILE is gone. Where FILE exists already nobody waits: the ranks of a run
// that was restarted pass by, as long as FILE is left in place.
class PausePoint {
 public:
  // Throws UserError when the value is malformed or names no phase.
  explicit PausePoint(std::string_view value);

  // Null where the variable is unset or empty. Throws UserError as above.
  static std::unique_ptr<PausePoint> from_environment();

  // Any thread. Throws RunError when FILE cannot be created.
  void reach(std::string_view phase, std::int64_t step, int rank);

 private:
  std::string phase_;
  std::int64_t step_ = 0;
  int rank_ = 0;
  std::string file_;
  std::atomic<bool> done_ = false;
};

}  // namespace meshtrain
