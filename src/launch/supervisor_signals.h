// Signals of a supervisor, as something to poll.
#pragma once

#include <csignal>

namespace meshtrain {

// While it lives, SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD and, unless it is ignored, SIGHUP of this process
// wait at a descriptor in place of their handlers; afterwards everything is as it was. For a process of one
// thread.
class SupervisorSignals {
 public:
  SupervisorSignals();
  SupervisorSignals(const SupervisorSignals&) = delete;
  SupervisorSignals& operator=(const SupervisorSignals&) = delete;
  ~SupervisorSignals();

  int descriptor() const { return descriptor_; }
  // The next one that has arrived; 0 when there is none.
  int take();
  // In a forked rank: handlers and mask as they were before.
  void restore();

 private:
  int descriptor_ = -1;
  sigset_t mask_before_{};
  struct sigaction child_before_ = {};
};

// Stops this process as Ctrl-Z does, unless it ignores that; returns when it goes on.
void stop_like_terminal();

// Ends this process by `signal`, whatever its handler.
[[noreturn]] void end_by(int signal);

}  // namespace meshtrain
