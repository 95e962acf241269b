// Work on many threads whose results come back in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace meshtrain {

// Until `next()` (returning std::optional<Job>) is empty: each of `threads` threads takes a job and calls
// its own `work` (made by make_worker() on that thread) on it; the calling thread gets the results through
// consume(Result) in the order of the jobs. next() is called by one thread at a time. At most 2·threads + 2
// jobs are under way, so memory is bounded. The first exception in job order stops all and is thrown here.
template <class Result, class Next, class MakeWorker, class Consume>
void ordered_parallel(int threads, Next next, MakeWorker make_worker, Consume consume) {
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr error;
    bool ready = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Slot>> window;
  bool finished = false;  // no more jobs
  const std::size_t limit = 2 * static_cast<std::size_t>(threads) + 2;

  const auto run = [&] {
    std::optional<decltype(make_worker())> worker;
    for (;;) {
      auto slot = std::make_shared<Slot>();
      decltype(next()) job;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return finished || window.size() < limit; });
        if (finished) return;
        try {
          job = next();
          if (!job) finished = true;
        } catch (...) {
          slot->error = std::current_exception();
          slot->ready = finished = true;
        }
        if (job || slot->error) window.push_back(slot);
      }
      changed.notify_all();
      if (!job) return;
      std::optional<Result> result;
      std::exception_ptr error;
      try {
        if (!worker) worker.emplace(make_worker());
        result.emplace((*worker)(std::move(*job)));
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex);
        slot->result = std::move(result);
        slot->error = error;
        slot->ready = true;
      }
      changed.notify_all();
    }
  };

  std::vector<std::jthread> pool;
  // Declared behind the pool, so that an exception stops the threads before they are joined.
  struct Stop {
    std::mutex& mutex;
    std::condition_variable& changed;
    bool& finished;
    ~Stop() {
      {
        const std::lock_guard lock(mutex);
        finished = true;
      }
      changed.notify_all();
    }
  } stop{mutex, changed, finished};
  pool.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) pool.emplace_back(run);

  for (;;) {
    std::shared_ptr<Slot> slot;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return window.empty() ? finished : window.front()->ready; });
      if (window.empty()) return;
      slot = window.front();
      window.pop_front();
    }
    changed.notify_all();
    if (slot->error) std::rethrow_exception(slot->error);
    consume(std::move(*slot->result));
  }
}

}  // namespace meshtrain
