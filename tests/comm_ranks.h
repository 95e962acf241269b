// Ranks of the shm engine for tests: threads, or forked processes that a test may stop and kill.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/engines.h"

namespace meshtrain::testing {

// Returns what failed.
using RankBody = std::function<std::vector<std::string>(World&)>;

// An exception of the body is a failure too.
inline std::vector<std::string> run_rank(ShmArea& area, int rank, const WorldOptions& options,
                                         const RankBody& body) {
  try {
    const auto world = area.join(rank, options);
    return body(*world);
  } catch (const std::exception& e) {
    return {e.what()};
  }
}

inline std::vector<std::vector<std::string>> run_threads(int ranks, const WorldOptions& options,
                                                         const RankBody& body) {
  const auto area = ShmArea::create(ranks, ShmArea::Ranks::kThreads);
  std::vector<std::vector<std::string>> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { failures[rank] = run_rank(*area, rank, options, body); });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// A forked rank; what its body returns comes back through a pipe. Killed if it still runs at the end.
class RankProcess {
 public:
  RankProcess(ShmArea& area, int rank, const WorldOptions& options, const RankBody& body)
      : RankProcess([&] { return run_rank(area, rank, options, body); }) {}
  explicit RankProcess(const std::function<std::vector<std::string>()>& body) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    child_ = fork();
    if (child_ < 0) std::abort();
    if (child_ == 0) {
      close(ends[0]);
      const std::vector<std::string> failures = body();
      for (const std::string& failure : failures) {
        const std::string line = failure + '\n';
        if (write(ends[1], line.data(), line.size()) < 0) _exit(3);
      }
      _exit(0);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  RankProcess(RankProcess&& other) noexcept
      : child_(std::exchange(other.child_, -1)), output_(std::exchange(other.output_, -1)) {}
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
  }

  pid_t id() const { return child_; }
  void signal(int number) const {
    if (child_ > 0) kill(child_, number);  // -1 would be everybody
  }

  // Waits for the end. A signal is a failure; so is a second wait.
  std::vector<std::string> finish() {
    std::vector<std::string> lines;
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(output_, buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines.push_back(text.substr(begin, end - begin));
    }
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    if (WIFSIGNALED(status)) lines.push_back("ended by signal " + std::to_string(WTERMSIG(status)));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      lines.push_back("exit " + std::to_string(WEXITSTATUS(status)));
    return lines;
  }

 private:
  pid_t child_ = -1;
  int output_ = -1;
};

inline std::vector<std::vector<std::string>> run_processes(int ranks, const WorldOptions& options,
                                                           const RankBody& body) {
  const auto area = ShmArea::create(ranks, ShmArea::Ranks::kProcesses);
  std::vector<RankProcess> processes;
  for (int rank = 0; rank < ranks; ++rank) processes.emplace_back(*area, rank, options, body);
  std::vector<std::vector<std::string>> failures;
  for (RankProcess& process : processes) failures.push_back(process.finish());
  return failures;
}

}  // namespace meshtrain::testing
