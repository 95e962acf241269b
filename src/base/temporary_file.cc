#include "base/temporary_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <utility>

namespace meshtrain {
namespace {

// A signal handler can reach nothing but globals, and must not allocate.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<pid_t> owner{0};  // 0: the path is not complete
  std::array<char, PATH_MAX> path{};
};
std::array<Slot, 16> slots;
static_assert(std::atomic<pid_t>::is_always_lock_free);

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

void on_signal(int signal) {
  remove_temporary_files();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

TemporaryFile::TemporaryFile(std::string path) : path_(std::move(path)) {
  if (path_.size() >= PATH_MAX) return;
  for (std::size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    if (!slots[i].taken.exchange(true)) slot_ = static_cast<int>(i);
  }
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.path[path_.copy(slot.path.data(), path_.size())] = '\0';
  slot.owner = getpid();
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
  keep();
}

void TemporaryFile::keep() {
  path_.clear();
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.owner = 0;
  slot.taken = false;
  slot_ = -1;
}

HeldSignals::HeldSignals() {
  sigset_t held;
  sigemptyset(&held);
  for (const int number : kEndingSignals) sigaddset(&held, number);
  pthread_sigmask(SIG_BLOCK, &held, &before_);
}

HeldSignals::~HeldSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void remove_temporary_files() {
  for (const Slot& slot : slots) {
    if (slot.owner == getpid()) unlink(slot.path.data());
  }
}

void remove_temporary_files_at_signals() {
  for (const int number : kEndingSignals) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

}  // namespace meshtrain
