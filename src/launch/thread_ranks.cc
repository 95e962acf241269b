#include "launch/thread_ranks.h"

#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "comm/engines.h"
#include "launch/cores.h"
#include "launch/failures.h"

namespace meshtrain {
namespace {

class ThreadRanks {
 public:
  ThreadRanks(const LaunchOptions& options, const RankBody& body)
      : options_(options),
        body_(body),
        cores_(in_order_of_topology(available_cores())),
        area_(ShmArea::create(options.ranks, ShmArea::Ranks::kThreads)) {}

  void run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      try {
        threads.emplace_back([this, rank] { run_rank(rank); });
      } catch (const std::system_error& error) {
        record({rank, FailureKind::kUser,
                fmt::format("the system starts no thread for rank {} of {}: {}. Fewer ranks, or a higher "
                            "`ulimit -u`, will do.",
                            rank, options_.ranks, error.what()),
                0});
        break;
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (!failures_.empty()) throw_cause(failures_, options_.ranks);
  }

 private:
  void run_rank(int rank) {
    pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
    try {
      const int threads = take_cores(cores_, rank, options_.ranks);
      const std::unique_ptr<World> world = area_->join(rank, options_.world);
      try {
        body_(*world, threads);
      } catch (...) {
        // Before the world goes: what others see when it leaves comes later.
        record(describe_failure(rank, std::current_exception()));
      }
    } catch (...) {
      record(describe_failure(rank, std::current_exception()));
    }
  }

  void record(const RankFailure& failure) {
    {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure);
    }
    area_->abort(reason_for_others(failure));
  }

  const LaunchOptions& options_;
  const RankBody& body_;
  const std::vector<int> cores_;
  const std::shared_ptr<ShmArea> area_;
  std::mutex mutex_;
  std::vector<RankFailure> failures_;
};

}  // namespace

void run_thread_ranks(const LaunchOptions& options, const RankBody& body) {
  ThreadRanks(options, body).run();
}

}  // namespace meshtrain
