// What all groups of a process share: the MPI library, the news of other ranks, and how to wait.
//
// Everything goes over two duplicates of MPI_COMM_WORLD, one for headers and one for data. Groups are apart by
// their tags, so that making one needs no collective call of the library and every wait has its deadline.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/requests.h"
#include "comm/world.h"

namespace meshtrain::mpi {

// "rank 3", "ranks 0, 2".
std::string rank_list(std::span<const int> ranks);

// Threads may use it at the same time.
class Session {
 public:
  // Initialises MPI. A process that exits before leave() has returned ends all ranks (MPI_Abort) with its own
  // exit status. Throws UserError as make_mpi_world does.
  Session(int expected, const WorldOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }
  MPI_Comm control() const { return control_; }
  MPI_Comm data() const { return data_; }

  // A tag of no other group, for these world ranks, this one included: all ask for it in the same order.
  int agree_on_tag(const std::string& name, const std::vector<int>& ranks);

  struct Wait {
    enum class Progress : std::uint8_t { kNone, kSome, kDone };
    std::function<Progress()> poll;
    std::function<std::vector<int>()> awaited;  // world ranks
    std::function<std::string()> describe;      // what was asked, and what is missing
    bool any_progress_resets_deadline = false;
  };
  // Throws CommError past the deadline, when an awaited rank has left, or when the world has failed.
  void wait(const Wait& wait);
  void wait_for_headers(Requests& requests, const std::function<std::string()>& describe);
  // Ranks that are in the operation are waited for as long as their data moves.
  void wait_for_data(Requests& requests, const std::function<std::string()>& describe);

  // Throws CommError once the world has failed.
  void check_alive() const;
  // From now on every rank fails with this reason.
  void fail(const std::string& reason) noexcept;
  [[noreturn]] void fail_and_throw(const std::string& reason);

  // Tells the others, waits until they leave too, and ends MPI; or returns once the world has failed.
  void leave() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Hello;
  struct Notice;

  void tell_all(const Notice& notice);
  // take(source, message) of every message of this tag that is here.
  template <class Message, class Take>
  void take_all(int tag, const Take& take);
  void take_notices();
  void take_hellos();
  std::vector<int> gone_among(const std::vector<int>& ranks) const;
  bool record_failure(const std::string& reason);  // true: it is the first

  WorldOptions options_;
  int rank_ = 0;
  int size_ = 1;
  int local_size_ = 1;
  int largest_tag_ = 0;
  bool oversubscribed_ = false;  // more ranks on this host than cores
  MPI_Comm control_ = MPI_COMM_NULL;
  MPI_Comm data_ = MPI_COMM_NULL;
  std::atomic<bool> failed_{false};  // set with reason_
  std::atomic<int> left_count_{0};

  mutable std::mutex mutex_;  // of all below
  std::string reason_;
  std::map<int, Clock::time_point> left_;
  std::map<std::pair<std::string, std::vector<int>>, std::uint64_t> generations_;
  int tags_given_ = 0;
  std::map<std::pair<int, std::uint64_t>, int> hellos_;  // (source, key of a group) → the tag it proposes
};

}  // namespace meshtrain::mpi
