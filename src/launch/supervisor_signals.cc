#include "launch/supervisor_signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace meshtrain {

SupervisorSignals::SupervisorSignals() {
  sigset_t mine;
  sigemptyset(&mine);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGTSTP, SIGCHLD}) sigaddset(&mine, signal);
  // What is blocked is not ignored either: nohup must keep its effect.
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&mine, SIGHUP);
  descriptor_ = signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw_user_error("no descriptor for signals: {}.", std::strerror(errno));
  // Ignored, as some parents leave it, it would take the ranks' exit statuses away.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &child_before_);
  sigprocmask(SIG_BLOCK, &mine, &mask_before_);
}

SupervisorSignals::~SupervisorSignals() {
  restore();
}

int SupervisorSignals::take() {
  signalfd_siginfo info{};
  return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void SupervisorSignals::restore() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  descriptor_ = -1;
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void stop_like_terminal() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // it takes effect here
  sigprocmask(SIG_BLOCK, &stop, nullptr);
}

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t this_one;
  sigemptyset(&this_one);
  sigaddset(&this_one, signal);
  raise(signal);
  sigprocmask(SIG_UNBLOCK, &this_one, nullptr);
  _exit(128 + signal);  // not reached: the signals that are forwarded end a process
}

}  // namespace meshtrain
