// Threads that share out the independent tasks of one loop after another, for loops that last from
// microseconds to seconds.
//
// The caller works too, and waits for a worker only while that one is inside a task: on a machine
// whose cores are busy with something else, a worker that is not scheduled delays nobody. Idle workers
// spin for some microseconds and then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace meshtrain {

// Used by one thread at a time; a task must not start another loop on the same pool.
class ThreadPool {
 public:
  // `threads` counts the caller: threads - 1 are started. Throws UserError when the system refuses one.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task) once for every task in [0, count), started in ascending order, on the caller and up
  // to max_threads - 1 workers; returns when all are done. Which thread runs a task is not defined. The
  // first exception is thrown again here.
  template <class Body>
  void run(std::int64_t count, int max_threads, const Body& body) {
    run_loop({.call = [](const void* b, std::int64_t task) { (*static_cast<const Body*>(b))(task); },
              .body = &body,
              .count = count,
              .workers = max_threads - 1});
  }
  template <class Body>
  void run(std::int64_t count, const Body& body) {
    run(count, threads(), body);
  }

 private:
  struct Loop {
    void (*call)(const void* body, std::int64_t task) = nullptr;
    const void* body = nullptr;
    std::int64_t count = 0;
    int workers = 0;
  };

  void run_loop(const Loop& loop);
  void take_tasks();
  void end_workers();
  void work(int index);

  Loop loop_;
  std::atomic<std::int64_t> next_{0};
  std::exception_ptr failure_;
  std::atomic_flag failed_;
  // A worker counts itself in `inside_` before it looks at `open_`; the caller closes before it looks at
  // `inside_`. So once it reads zero after closing, nobody touches the loop any more.
  std::atomic<bool> open_{false};
  std::atomic<std::int32_t> inside_{0};
  std::atomic<std::uint32_t> epoch_{0};  // changes with every loop, and at the end
  std::atomic<bool> ending_{false};
  std::vector<std::thread> workers_;
};

}  // namespace meshtrain
