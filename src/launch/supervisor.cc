#include "launch/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/standard_streams.h"
#include "comm/engines.h"
#include "comm/waiting_time.h"
#include "launch/cores.h"
#include "launch/failures.h"
#include "launch/rank_output.h"
#include "launch/rank_status.h"
#include "launch/supervisor_signals.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::milliseconds kLook{100};  // between looks at a rank that is stopped

bool is_only_thread() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error || std::distance(begin(tasks), end(tasks)) == 1;
}

std::string_view hint_for(int signal) {
  switch (signal) {
    case SIGKILL:
      return ". If nobody sent it, the system was out of memory: see dmesg.";
    case SIGBUS:
      return ". A file that it was reading has become shorter, or the memory for shared files is full.";
    default:
      return "";
  }
}

// How a process ended that did not say so itself.
std::string describe_end(int rank, int ranks, pid_t process, int status) {
  const std::string_view others = ranks > 1 ? "; the other ranks were stopped" : "";
  if (!WIFSIGNALED(status)) {
    return fmt::format("rank {} (process {}) left with exit status {} before its work was done{}", rank,
                       process, WEXITSTATUS(status), others);
  }
  const int signal = WTERMSIG(status);
  return fmt::format("rank {} (process {}) was killed by signal {} ({}){}{}", rank, process, signal,
                     strsignal(signal), others, hint_for(signal));
}

// By SIGSTOP or its like, now.
bool is_stopped(pid_t process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == process;
}

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const RankBody& body)
      : options_(options),
        body_(body),
        cores_(in_order_of_topology(available_cores())),
        area_(ShmArea::create(options.ranks, ShmArea::Ranks::kProcesses)),
        statuses_(options.ranks),
        supervisor_(getpid()),
        ranks_(static_cast<std::size_t>(options.ranks)) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor() {
    send_to_all(SIGKILL);
    for (const Rank& rank : ranks_) {
      if (rank.process > 0) waitpid(rank.process, nullptr, 0);
    }
  }

  RanksEnd run() {
    start();
    while (anyone_runs()) {
      wait_for_news();
      take_signals();
      reap();
      watch_stopped();
      press();
    }
    for (Rank& rank : ranks_) {
      if (rank.output) rank.output->finish();
    }
    std::sort(failures_.begin(), failures_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    RanksEnd end;
    for (auto& [order, failure] : failures_) end.failures.push_back(std::move(failure));
    end.user_signal = !passed_on_.empty();
    if (end.failures.empty()) return end;
    end.lost = lost(end.failures);
    if (const int signal = cause_of(end.failures).signal; passed_on_.contains(signal)) end.ended_by = signal;
    return end;
  }

 private:
  struct Rank {
    pid_t process = -1;  // -1: not started, or gone
    std::optional<RankOutput> output;
    std::optional<WaitingTime> standing;  // stopped, for so long
    bool pressed = false;                 // told by us to end
    bool stopped = false;                 // found stopped, and killed by us
    bool silent = false;                  // ended by us, and said nothing
  };
  enum class Stage { kRunning, kAborted, kTerminated, kKilled };

  bool anyone_runs() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.process > 0; });
  }
  void send_to_all(int signal) const {
    for (const Rank& rank : ranks_) {
      if (rank.process > 0) kill(rank.process, signal);
    }
  }

  void start() {
    std::cout.flush();
    std::fflush(nullptr);  // or every rank would write what waits here
    for (int rank = 0; rank < options_.ranks; ++rank) {
      Rank& started = ranks_[static_cast<std::size_t>(rank)];
      if (rank > 0) started.output.emplace(fmt::format("[rank {}] ", rank), STDERR_FILENO);
      const pid_t child = fork();
      if (child == 0) run_rank(rank);
      if (child < 0) {
        throw_user_error(
            "the system starts no process for rank {} of {}: {}. Fewer ranks, or a higher `ulimit -u`, "
            "will do.",
            rank, options_.ranks, std::strerror(errno));
      }
      started.process = child;
      setpgid(child, child);  // as the child does; whoever comes first
      if (started.output) started.output->close_writing_end();
    }
  }

  // The whole life of a rank's process; nothing of it gets out into the copy of the supervisor.
  [[noreturn]] void run_rank(int rank) noexcept {
    int status = EXIT_FAILURE;
    setpgid(0, 0);  // Ctrl-C reaches the supervisor alone
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor_) _exit(status);  // it died before that
    try {
      take_streams(rank);
      signals_.restore();
      status = run_body(rank);
    } catch (...) {
      status = fail(rank);
    }
    std::cout.flush();
    std::fflush(nullptr);
    _exit(status);
  }

  void take_streams(int rank) {
    // A process beside the terminal's foreground stops when it reads, and perhaps when it writes.
    std::signal(SIGTTIN, SIG_IGN);
    std::signal(SIGTTOU, SIG_IGN);
    if (rank > 0) {
      const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (nothing >= 0) dup2(nothing, STDIN_FILENO);
      if (nothing > STDIN_FILENO) close(nothing);
      ranks_[static_cast<std::size_t>(rank)].output->become_standard_streams();
      std::setvbuf(stdout, nullptr, _IOLBF, 0);
    }
    for (Rank& other : ranks_) other.output.reset();
  }

  int run_body(int rank) {
    const int threads = take_cores(cores_, rank, options_.ranks);
    const std::unique_ptr<World> world = area_->join(rank, options_.world);
    try {
      body_(*world, threads);
      flush_standard_output();
    } catch (...) {
      // Before the world goes: what others see when it leaves comes later.
      return fail(rank);
    }
    statuses_.set_succeeded(rank);
    return EXIT_SUCCESS;
  }

  // Records the current exception; the exit status.
  int fail(int rank) {
    const RankFailure failure = describe_failure(rank, std::current_exception());
    statuses_.set_failed(failure);
    area_->abort(reason_for_others(failure));
    return failure.kind == FailureKind::kUser ? 2 : EXIT_FAILURE;
  }

  // Returns when a signal has come, or the time for the next stage; passes on what ranks write.
  void wait_for_news() {
    std::vector<pollfd> news = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const Rank& rank : ranks_) {
      const int descriptor = rank.output ? rank.output->descriptor() : -1;  // poll skips -1
      news.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
    }
    int milliseconds = -1;
    if (stage_ == Stage::kAborted || stage_ == Stage::kTerminated) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_stage_ - Clock::now());
      milliseconds = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.standing.has_value(); })) {
      milliseconds = kLook.count();
    }
    if (poll(news.data(), news.size(), milliseconds) < 0) return;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (news[i + 1].revents != 0) ranks_[i].output->forward();
    }
  }

  void take_signals() {
    for (int signal = 0; (signal = signals_.take()) != 0;) {
      if (signal == SIGTSTP) {
        send_to_all(SIGSTOP);
        stop_like_terminal();
        send_to_all(SIGCONT);
      } else if (signal != SIGCHLD) {
        passed_on_.insert(signal);
        send_to_all(signal);
      }
    }
  }

  void reap() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      Rank& state = ranks_[static_cast<std::size_t>(rank)];
      int status = 0;
      if (state.process <= 0 || waitpid(state.process, &status, WNOHANG) != state.process) continue;
      const pid_t process = std::exchange(state.process, -1);
      judge(rank, process, status);
    }
  }

  void judge(int rank, pid_t process, int status) {
    const bool left = WIFEXITED(status);
    if (left && WEXITSTATUS(status) == EXIT_SUCCESS && statuses_.succeeded(rank)) return;
    if (const std::optional<RankFailure> failure = statuses_.failure(rank)) {
      add_failure(*failure, statuses_.order(rank));
    } else if (Rank& state = ranks_[static_cast<std::size_t>(rank)]; !left && state.pressed) {
      state.silent = true;  // our own doing
      return;
    } else {
      add_failure({rank, FailureKind::kEnded, describe_end(rank, options_.ranks, process, status),
                   left ? 0 : WTERMSIG(status)});
    }
  }

  // `order`: where it stands among failures; by default the last.
  void add_failure(const RankFailure& failure, std::optional<std::uint32_t> order = std::nullopt) {
    failures_.emplace_back(order ? *order : statuses_.take_order(), failure);
    if (stage_ != Stage::kRunning) return;
    area_->abort(reason_for_others(failure));
    enter(Stage::kAborted);
  }

  // Where others wait for a rank that is stopped they say so when their deadline has passed. This is for one
  // that nobody waits for: the only one, the last to end, or all of them. The system tells of each stop.
  void watch_stopped() {
    for (int number = 0; number < options_.ranks && stage_ == Stage::kRunning; ++number) {
      Rank& rank = ranks_[static_cast<std::size_t>(number)];
      if (rank.process <= 0 || !is_stopped(rank.process)) {
        rank.standing.reset();
        continue;
      }
      if (!rank.standing) rank.standing.emplace();
      if (rank.standing->passed() < options_.world.deadline + kPatience) continue;
      const double seconds = std::chrono::duration<double>(options_.world.deadline).count();
      add_failure(
          {number, FailureKind::kEnded,
           fmt::format(
               "rank {} (process {}) was stopped, as by SIGSTOP, for longer than the deadline of {:.3g} s",
               number, rank.process, seconds)});
    }
  }

  void kill_stopped() {
    for (Rank& rank : ranks_) {
      if (rank.process <= 0 || !is_stopped(rank.process)) continue;
      rank.pressed = rank.stopped = true;
      kill(rank.process, SIGKILL);
    }
  }

  // See RanksEnd.
  std::vector<int> lost(const std::vector<RankFailure>& failures) const {
    std::set<int> result;
    for (const RankFailure& failure : failures) {
      const bool by_user = failure.signal != 0 && passed_on_.contains(failure.signal);
      if (failure.kind == FailureKind::kEnded && !by_user) result.insert(failure.rank);
    }
    const auto insert = [&](bool Rank::*what) {
      for (int rank = 0; rank < options_.ranks; ++rank) {
        if (ranks_[static_cast<std::size_t>(rank)].*what) result.insert(rank);
      }
    };
    insert(&Rank::stopped);
    if (result.empty() && cause_of(failures).kind == FailureKind::kLostOthers) insert(&Rank::silent);
    return {result.begin(), result.end()};
  }

  // After a failure: harder means against ranks that stay.
  void press() {
    if (stage_ == Stage::kAborted) kill_stopped();
    if (stage_ == Stage::kRunning || stage_ == Stage::kKilled || Clock::now() < next_stage_) return;
    const bool asked_before = stage_ == Stage::kTerminated;
    for (Rank& rank : ranks_) rank.pressed = rank.process > 0;
    send_to_all(asked_before ? SIGKILL : SIGTERM);
    enter(asked_before ? Stage::kKilled : Stage::kTerminated);
  }

  void enter(Stage stage) {
    stage_ = stage;
    next_stage_ = Clock::now() + kPatience;
  }

  const LaunchOptions& options_;
  const RankBody& body_;
  const std::vector<int> cores_;
  const std::shared_ptr<ShmArea> area_;
  RankStatuses statuses_;
  const pid_t supervisor_;
  SupervisorSignals signals_;
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::kRunning;
  Clock::time_point next_stage_;
  std::vector<std::pair<std::uint32_t, RankFailure>> failures_;  // with their order
  std::set<int> passed_on_;
};

}  // namespace

RanksEnd watch_process_ranks(const LaunchOptions& options, const RankBody& body) {
  check(is_only_thread(), "ranks are forked before any thread is started");
  return Supervisor(options, body).run();
}

void run_process_ranks(const LaunchOptions& options, const RankBody& body) {
  const RanksEnd end = watch_process_ranks(options, body);
  if (end.ended_by != 0) end_by(end.ended_by);
  if (!end.failures.empty()) throw_cause(end.failures, options.ranks);
}

}  // namespace meshtrain
