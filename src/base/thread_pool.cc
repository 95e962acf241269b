#include "base/thread_pool.h"

#include <system_error>

#include "base/error.h"

namespace meshtrain {
namespace {

// About ten microseconds: longer than the gap between two operations of a training step, shorter than
// what sleeping and waking cost on a busy machine.
constexpr int kSpins = 400;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins, then sleeps, until `value` differs from `old`.
template <class T>
void wait_while_equal(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  try {
    for (int i = 0; i + 1 < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    end_workers();
    throw_user_error(
        "the system starts only {} of {} threads ({}); ask for fewer (machine.threads or --threads), or raise "
        "the limit on processes",
        started + 1, threads, error.code().message());
  }
}

ThreadPool::~ThreadPool() {
  end_workers();
}

void ThreadPool::end_workers() {
  ending_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_loop(const Loop& loop) {
  if (loop.count <= 0) return;
  loop_ = loop;
  next_ = 0;
  failure_ = nullptr;
  failed_.clear();
  const bool shared = loop.count > 1 && loop.workers > 0 && !workers_.empty();
  if (shared) {
    open_ = true;
    ++epoch_;
    epoch_.notify_all();
  }
  take_tasks();
  if (shared) {
    open_ = false;
    for (std::int32_t inside = inside_; inside != 0; inside = inside_) wait_while_equal(inside_, inside);
  }
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::take_tasks() {
  for (std::int64_t task = next_++; task < loop_.count; task = next_++) {
    try {
      loop_.call(loop_.body, task);
    } catch (...) {
      if (!failed_.test_and_set()) failure_ = std::current_exception();
    }
  }
}

void ThreadPool::work(int index) {
  std::uint32_t seen = 0;
  for (;;) {
    wait_while_equal(epoch_, seen);
    seen = epoch_;
    if (ending_) return;
    ++inside_;
    if (open_ && index < loop_.workers) take_tasks();
    --inside_;
    inside_.notify_one();
  }
}

}  // namespace meshtrain
