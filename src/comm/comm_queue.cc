#include "comm/comm_queue.h"

#include <utility>

#include "base/error.h"
#include "base/trace.h"

namespace meshtrain {

CommQueue::CommQueue(Device& device, bool background) : stream_(device, 1) {
  if (background && !device.is_simulated()) thread_.emplace([this] { run_jobs(); });
}

CommQueue::~CommQueue() {
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  thread_->join();
}

CommQueue::Ticket CommQueue::submit(Job job, const char* name, TraceKind kind) {
  if (!thread_) {
    job(stream_);
    done_ = ++submitted_;
    return submitted_;
  }
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    jobs_.push_back({.job = std::move(job), .name = name, .kind = kind});
  }
  changed_.notify_all();
  return ++submitted_;
}

void CommQueue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return failure_ || done_ >= ticket; };
  if (waiter_ != nullptr && !ready()) {
    const TraceSpan span(waiter_, TraceKind::kWait, "wait for {}", stream_.trace()->name());
    changed_.wait(lock, ready);
  }
  changed_.wait(lock, ready);
  if (failure_) std::rethrow_exception(failure_);
}

void CommQueue::set_trace(TraceTrack* jobs, TraceTrack* waiter) {
  check((jobs == nullptr) == (waiter == nullptr), "a queue has both tracks of a trace, or none");
  stream_.set_trace(jobs);
  waiter_ = waiter;
}

void CommQueue::run_jobs() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || (!jobs_.empty() && !failure_); });
    if (ending_) return;
    const Named next = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      const TraceSpan span(stream_.trace(), next.kind, "{}", next.name);
      next.job(stream_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace meshtrain
