// For tests: a program that launches ranks, in a process of its own, with what it wrote and how it ended.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "launch/launch.h"

namespace meshtrain {

inline void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

// Waits until `holds`; false after a minute.
inline bool wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000; ++i) {
    if (holds()) return true;
    sleep_ms(1);
  }
  return false;
}

// A zero-filled T that forked processes share.
template <class T>
class Shared {
 public:
  Shared() {
    void* const memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    value_ = new (memory) T{};
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

// 'R', 'S', 'T', 'Z' … of /proc/PID/stat; 0 when there is no such process.
inline char process_state(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : 0;
}
inline bool is_gone(pid_t process) {
  const char state = process_state(process);
  return state == 0 || state == 'Z' || state == 'X';
}

// The communicator of all ranks.
inline std::unique_ptr<Communicator> everyone(World& world) {
  return world.everyone("all");
}

class ForkedProgram {
 public:
  // Runs `program` as main does: its errors are reported and become the exit status.
  explicit ForkedProgram(const std::function<void()>& program) : output_(memfd_create("output", 0)) {
    std::fflush(nullptr);
    process_ = fork();
    if (process_ < 0 || output_ < 0) throw std::runtime_error("fork failed");
    if (process_ > 0) return;
    setpgid(0, 0);
    fcntl(output_, F_SETFL, O_APPEND);  // or writes at the same time would meet: memfds lock no position
    dup2(output_, STDOUT_FILENO);
    dup2(output_, STDERR_FILENO);
    _exit(run_as_main(program));
  }
  ForkedProgram(const ForkedProgram&) = delete;
  ForkedProgram& operator=(const ForkedProgram&) = delete;
  ~ForkedProgram() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    close(output_);
  }

  pid_t process() const { return process_; }

  // Its exit status, or -signal. Killed after a minute.
  int finish() {
    int status = 0;
    if (!wait_until([&] { return waitpid(process_, &status, WNOHANG) == process_; })) {
      ADD_FAILURE() << "the program hangs; killed";
      kill(process_, SIGKILL);
      waitpid(process_, &status, 0);
    }
    process_ = -1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  // What it and its ranks have written to standard output and error.
  std::string output() const {
    std::string text(static_cast<std::size_t>(lseek(output_, 0, SEEK_END)), '\0');
    const ssize_t count = pread(output_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  static int report(const char* kind, const std::exception& error, int status) {
    std::fprintf(stderr, "meshtrain: %s%s\n", kind, error.what());
    return status;
  }
  static int run_as_main(const std::function<void()>& program) {
    int status = 0;
    try {
      program();
    } catch (const UserError& error) {
      status = report("", error, 2);
    } catch (const RunError& error) {
      status = report("", error, 1);
    } catch (const std::exception& error) {
      status = report("unexpected failure: ", error, 1);
    }
    std::fflush(nullptr);
    return status;
  }

  int output_;
  pid_t process_ = -1;
};

struct Ended {
  int status = 0;
  std::string output;
};
inline std::ostream& operator<<(std::ostream& stream, const Ended& ended) {
  return stream << "status " << ended.status << "\n" << ended.output;
}

// `ranks` processes that run `body`, supervised by a process of its own.
inline Ended run_processes(int ranks, const RankBody& body) {
  ForkedProgram program([&] { run_local_ranks({.ranks = ranks}, body); });
  const int status = program.finish();
  return {status, program.output()};
}

}  // namespace meshtrain
