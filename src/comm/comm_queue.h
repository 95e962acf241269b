// The communication stream: runs jobs in order, in the background, beside the computation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/trace.h"
#include "device/device.h"
#include "device/stream.h"

namespace meshtrain {

// Used by one thread. Jobs may use communicators that nobody else uses meanwhile.
class CommQueue {
 public:
  // Jobs compute on a stream of one thread on `device`. Where `background` is false, and on a simulated
  // device, a job has run when submit returns.
  CommQueue(Device& device, bool background);
  // Drops jobs that have not begun, and waits for the one that runs.
  ~CommQueue();
  CommQueue(const CommQueue&) = delete;
  CommQueue& operator=(const CommQueue&) = delete;

  // Jobs count from 1.
  using Ticket = std::int64_t;
  using Job = std::function<void(Stream&)>;
  // `name`: a literal, of the job's event in the trace, which is of this kind.
  Ticket submit(Job job, const char* name = "job", TraceKind kind = TraceKind::kCommunication);
  // Returns when this job and all before it are done. The first exception of a job is thrown here, by every
  // later wait and submit too; jobs behind it do not run.
  void wait(Ticket ticket);
  void wait_all() { wait(submitted_); }

  // Whether jobs run beside the thread that submits them.
  bool in_background() const { return thread_.has_value(); }
  // Jobs show on the track `jobs`, and on `waiter` when the thread that submits them waits for them; both null:
  // not at all. Jobs that do not run in the background have no events of their own. Only while no job is under
  // way.
  void set_trace(TraceTrack* jobs, TraceTrack* waiter);

 private:
  struct Named {
    Job job;
    const char* name;
    TraceKind kind;
  };
  void run_jobs();

  Stream stream_;
  TraceTrack* waiter_ = nullptr;
  std::int64_t submitted_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Named> jobs_;
  std::int64_t done_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::optional<std::thread> thread_;
};

}  // namespace meshtrain
