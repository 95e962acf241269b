#include "comm/mpi/session.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "comm/mpi/backoff.h"
#include "comm/waiting_time.h"

namespace meshtrain::mpi {

using std::chrono::milliseconds;

// Tags of the control communicator that no group has.
constexpr int kHelloTag = 0;
constexpr int kNoticeTag = 1;
constexpr int kFirstGroupTag = 2;

// A rank that leaves has sent all it had to; this long, some of it may be under way.
constexpr milliseconds kLeaveGrace{500};
// The ranks that fail for one reason get as long to say so before one of them ends them all.
constexpr milliseconds kLastWords{250};

struct Session::Hello {
  std::uint64_t key = 0;
  int tag = 0;
};

struct Session::Notice {
  enum class Kind : std::uint8_t { kFailed, kLeaves };
  Kind kind = Kind::kFailed;
  std::array<char, 2047> reason{};  // ends with a zero
};

namespace {

void end_all_ranks(int status, void* /*unused*/) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return;
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, status != 0 ? status : EXIT_FAILURE);
}

void initialize_mpi() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  check(initialized == 0, "MPI is initialised once a process");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  on_exit(end_all_ranks, nullptr);
  if (provided < MPI_THREAD_MULTIPLE) {
    throw_user_error(
        "communication over MPI needs a library that several threads may use at the same time, and this one "
        "does "
        "not offer MPI_THREAD_MULTIPLE; install another, e.g. Debian's libopenmpi-dev, and build again");
  }
}

int ranks_of_this_host(int rank) {
  MPI_Comm host = MPI_COMM_NULL;
  int size = 1;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_size(host, &size), "MPI_Comm_size");
  check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
  return size;
}

}  // namespace

std::string rank_list(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

Session::Session(int expected, const WorldOptions& options) : options_(options) {
  initialize_mpi();
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  if (expected != 0 && expected != size_) {
    throw_user_error(
        "{} ranks were asked for, and MPI has {}; start as many with the launcher (mpirun -n {}), or ask for "
        "{}",
        expected, size_, expected, size_);
  }
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found), "MPI_Comm_get_attr");
  largest_tag_ = found != 0 ? *largest : 32767;  // the least that the standard allows
  local_size_ = ranks_of_this_host(rank_);
  oversubscribed_ = local_size_ > sysconf(_SC_NPROCESSORS_ONLN);
}

// Every member sends every other its hello, so each knows who has come; the first one's tag is taken. It is
// unique: this rank of the world gives tags to no other group twice.
int Session::agree_on_tag(const std::string& name, const std::vector<int>& ranks) {
  check_alive();
  Hello hello;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t generation = generations_[{name, ranks}]++;
    const std::string text = fmt::format("{} {} {}", generation, fmt::join(ranks, ","), name);
    hello.key = XXH3_64bits(text.data(), text.size());
    const std::int64_t tag = kFirstGroupTag + rank_ + std::int64_t{size_} * tags_given_++;
    if (tag > largest_tag_) {
      throw_run_error(
          "group \"{}\" would be number {} of rank {}, and the tags of this MPI library end at {}; use "
          "another library or engine",
          name, tags_given_, rank_, largest_tag_);
    }
    hello.tag = static_cast<int>(tag);
    hellos_[{rank_, hello.key}] = hello.tag;
  }
  Requests sends;
  const auto memory = std::make_shared<Hello>(hello);
  sends.keep(memory);
  for (const int peer : ranks) {
    if (peer != rank_) sends.send(control_, memory.get(), sizeof(Hello), peer, kHelloTag);
  }
  const auto missing = [&] {
    const std::lock_guard lock(mutex_);
    std::vector<int> result;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(result), [&](int r) {
      return !hellos_.contains({r, hello.key});
    });
    return result;
  };
  wait({.poll =
            [&] {
              sends.progress();
              take_hellos();
              return sends.done() && missing().empty() ? Wait::Progress::kDone : Wait::Progress::kNone;
            },
        .awaited = missing,
        .describe =
            [&] {
              return fmt::format("making group \"{}\" of {}: not arrived: {}", name, rank_list(ranks),
                                 rank_list(missing()));
            }});
  const std::lock_guard lock(mutex_);
  const int tag = hellos_.at({ranks.front(), hello.key});
  for (const int r : ranks) hellos_.erase({r, hello.key});
  return tag;
}

template <class Message, class Take>
void Session::take_all(int tag, const Take& take) {
  for (;;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, tag, control_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return;
    Message content;
    check_mpi(MPI_Mrecv(&content, sizeof content, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
    take(status.MPI_SOURCE, content);
  }
}

void Session::take_hellos() {
  take_all<Hello>(kHelloTag, [this](int source, const Hello& hello) {
    const std::lock_guard lock(mutex_);
    hellos_[{source, hello.key}] = hello.tag;
  });
}

void Session::take_notices() {
  take_all<Notice>(kNoticeTag, [this](int source, const Notice& notice) {
    if (notice.kind == Notice::Kind::kFailed) {
      record_failure(fmt::format("rank {} reports: {}", source, notice.reason.data()));
      return;
    }
    const std::lock_guard lock(mutex_);
    left_[source] = Clock::now();
    left_count_ = static_cast<int>(left_.size());
  });
}

// Small enough to leave at once; what does not is of no use any more.
void Session::tell_all(const Notice& notice) {
  const auto memory = std::make_shared<Notice>(notice);
  const std::size_t length = offsetof(Notice, reason) + std::strlen(notice.reason.data()) + 1;
  Requests sends;
  sends.keep(memory);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) sends.send(control_, memory.get(), static_cast<std::int64_t>(length), peer, kNoticeTag);
  }
}

std::vector<int> Session::gone_among(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  std::vector<int> result;
  for (const int rank : ranks) {
    const auto left = left_.find(rank);
    if (left != left_.end() && Clock::now() - left->second > kLeaveGrace) result.push_back(rank);
  }
  return result;
}

bool Session::record_failure(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return false;
  reason_ = reason;
  failed_ = true;
  return true;
}

void Session::check_alive() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw CommError(reason_);
}

void Session::fail(const std::string& reason) noexcept {
  try {
    if (!record_failure(reason)) return;
    Notice notice;
    reason.copy(notice.reason.data(), notice.reason.size() - 1);
    tell_all(notice);
  } catch (const std::exception&) {
    // Those who cannot be told reach their deadlines, or end with this process.
  }
}

void Session::fail_and_throw(const std::string& reason) {
  fail(reason);
  throw CommError(reason);
}

void Session::wait(const Wait& wait) {
  WaitingTime waited;
  Backoff backoff(oversubscribed_);
  for (;;) {
    const Wait::Progress progress = wait.poll();
    if (progress == Wait::Progress::kDone) return;
    if (progress == Wait::Progress::kSome) {
      backoff.reset();
      if (wait.any_progress_resets_deadline) waited.restart();
      continue;
    }
    if (backoff.time_to_look_around()) {
      take_notices();
      check_alive();
      if (waited.passed() > options_.deadline) {
        fail_and_throw(fmt::format("{}. The deadline of {} s has passed", wait.describe(),
                                   std::chrono::duration<double>(options_.deadline).count()));
      }
      if (left_count_ > 0) {
        const std::vector<int> gone = gone_among(wait.awaited());
        if (!gone.empty()) fail_and_throw(fmt::format("{}. {} left the run", wait.describe(), rank_list(gone)));
      }
    }
    backoff.pause();
  }
}

namespace {

Session::Wait::Progress poll_of(Requests& requests) {
  const bool some = requests.progress();
  if (requests.done()) return Session::Wait::Progress::kDone;
  return some ? Session::Wait::Progress::kSome : Session::Wait::Progress::kNone;
}

}  // namespace

void Session::wait_for_headers(Requests& requests, const std::function<std::string()>& describe) {
  wait({.poll = [&] { return poll_of(requests); },
        .awaited = [&] { return requests.open_peers(); },
        .describe = describe});
}

void Session::wait_for_data(Requests& requests, const std::function<std::string()>& describe) {
  wait({.poll = [&] { return poll_of(requests); },
        .awaited = [&] { return requests.open_peers(); },
        .describe = describe,
        .any_progress_resets_deadline = true});
}

void Session::leave() noexcept {
  try {
    if (failed_) return;
    Notice notice;
    notice.kind = Notice::Kind::kLeaves;
    tell_all(notice);
    // Without a deadline: others may have work left, in which this rank has no part.
    for (Backoff backoff(true); left_count_ < size_ - 1; backoff.pause()) {
      take_notices();
      if (failed_) return;
    }
    check_mpi(MPI_Comm_free(&control_), "MPI_Comm_free");
    check_mpi(MPI_Comm_free(&data_), "MPI_Comm_free");
    MPI_Finalize();
  } catch (const std::exception&) {
    // Not finalized: the end of the process ends the others.
  }
}

}  // namespace meshtrain::mpi
