// Running the real program as its users do: in a folder of its own, with arguments, signals and limits.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"

namespace meshtrain {

namespace fs = std::filesystem;

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// {"a=1", "b=2"} as -s a=1 -s b=2.
inline Arguments set(const std::vector<std::string>& keys) {
  Arguments result;
  for (const std::string& key : keys) {
    result.emplace_back("-s");
    result.push_back(key);
  }
  return result;
}

struct Outcome {
  int status = 0;  // exit status; -signal when one ended it
  std::string out;
  std::string err;
  std::int64_t peak_resident_bytes = 0;
  double cpu_seconds = 0.0;
};

// For gtest's "<<".
inline std::ostream& operator<<(std::ostream& stream, const Outcome& outcome) {
  return stream << "status " << outcome.status << "\n--- stdout\n"
                << outcome.out << "\n--- stderr\n"
                << outcome.err;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

// The program `name` of PATH; empty where there is none.
inline std::string find_program(const std::string& name) {
  std::istringstream folders(std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  }
  return {};
}

// How often `part` occurs in `text`.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
  return found;
}

// Before `mpirun` is started: it may run as root, and keeps its sessions in `folder`. By default Open MPI keeps
// those of all runs of a user in one folder, which each run makes and removes, so that two at a time can take
// it away from each other and then do not start.
inline void prepare_mpirun(const fs::path& folder) {
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) setenv(name, "1", 1);
  for (const char* name : {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"}) {
    setenv(name, folder.c_str(), 1);
  }
}

// The children of a process in the order in which it forked them (proc(5)).
inline std::vector<pid_t> children_of(pid_t parent) {
  const std::string number = std::to_string(parent);
  std::ifstream file("/proc/" + number + "/task/" + number + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

// What a child does between fork and exec: only async-signal-safe calls.
using BeforeExec = std::function<void()>;

// A program that runs. Destroyed while it still does, it is killed.
class Process {
 public:
  Process(const std::string& binary, const Arguments& arguments, const fs::path& directory,
          const BeforeExec& before_exec = {})
      : out_(directory / ".stdout"), err_(directory / ".stderr") {
    std::vector<std::string> words = {binary};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("fork failed");
    if (child_ > 0) return;
    const int out = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int in = open("/dev/null", O_RDONLY);
    if (out < 0 || err < 0 || in < 0 || chdir(directory.c_str()) != 0) _exit(126);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (before_exec) before_exec();
    execv(argv[0], argv.data());
    _exit(127);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  // -1 once it has ended.
  pid_t pid() const { return child_; }
  void signal(int number) const {
    if (child_ > 0) kill(child_, number);  // -1 would be everybody
  }

  // Waits until `holds`, or the process has ended (false), or two minutes have passed (false).
  bool wait_until(const std::function<bool()>& holds) {
    for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
      if (holds()) return true;
      if (reap(WNOHANG)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  // The end of it; killed after two minutes.
  Outcome finish() {
    const auto end = Clock::now() + kPatience;
    while (!reap(WNOHANG)) {
      if (Clock::now() >= end) {
        ADD_FAILURE() << "the program hangs; killed";
        kill(child_, SIGKILL);
        reap(0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    outcome_.out = read_file(out_);
    outcome_.err = read_file(err_);
    return outcome_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{120};

  bool reap(int flags) {
    if (child_ <= 0) return true;
    int status = 0;
    rusage usage{};
    if (wait4(child_, &status, flags, &usage) != child_) return false;
    child_ = -1;
    outcome_.status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    outcome_.peak_resident_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    outcome_.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    return true;
  }

  fs::path out_;
  fs::path err_;
  pid_t child_ = -1;
  Outcome outcome_;
};

using Digests = std::vector<std::string>;

inline void expect_contains(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

// One paragraph from meshtrain, no stack trace, no internal error.
inline void expect_one_paragraph(const Outcome& outcome, std::initializer_list<std::string_view> parts) {
  const std::size_t begin = outcome.err.find("meshtrain: ");
  ASSERT_NE(begin, std::string::npos) << outcome;
  const std::string message = outcome.err.substr(begin);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << outcome;
  EXPECT_EQ(message.back(), '\n') << outcome;
  for (const std::string_view word : {"internal error", "unexpected failure", "terminate", "exception"}) {
    EXPECT_EQ(message.find(word), std::string::npos) << outcome;
  }
  expect_contains(message, parts);
}

// A test with a folder of its own, which is also where the program runs.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
    // What programs keep between runs is the test's own.
    setenv("XDG_CACHE_HOME", path("cache").c_str(), 1);
  }
  ~ProgramTest() override {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }

  fs::path path(const std::string& name) const { return dir_ / name; }
  std::string read(const std::string& name) const { return read_file(path(name)); }
  void write(const std::string& name, std::string_view text) const { write_file(path(name), text); }
  bool exists(const std::string& name) const { return fs::exists(path(name)); }
  nlohmann::json read_json(const std::string& name) const { return nlohmann::json::parse(read(name)); }

  // A line with the name and the hash of each tensor of a checkpoint, the same whatever mesh wrote it.
  Digests tensors_of(const std::string& checkpoint) const {
    Digests lines;
    for (const TensorDigest& tensor : digest_of(Checkpoint(path(checkpoint))).tensors) {
      lines.push_back(tensor.name + ' ' + tensor.hash);
    }
    return lines;
  }

  Outcome run(const Arguments& arguments, const BeforeExec& before_exec = {}) const {
    return Process(MESHTRAIN_BINARY, arguments, dir_, before_exec).finish();
  }
  // The same, and it has to succeed.
  Outcome succeed(const Arguments& arguments) const {
    Outcome outcome = run(arguments);
    if (outcome.status != 0) {
      std::string line;
      for (const std::string& word : arguments) line += ' ' + word;
      ADD_FAILURE() << "meshtrain" << line << '\n' << outcome;
    }
    return outcome;
  }
  nlohmann::json succeed_with_json(const Arguments& arguments) const {
    return nlohmann::json::parse(succeed(arguments).out);
  }

  // A program started with this waits at `place` ("collective:13:0": a phase, a step and a rank, as
  // docs/checkpoints.md has them) until let_go(): whatever the test then does comes in time. While the file is
  // there nobody waits, those included that take the place of a rank that was killed.
  BeforeExec pausing_at(const std::string& place) const {
    return [value = place + ":" + path("paused").string()] { setenv("MESHTRAIN_PAUSE_AT", value.c_str(), 1); };
  }
  // A mistake of the user: nothing on stdout, and one paragraph with these parts.
  void expect_refused(const Arguments& arguments, std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome;
    EXPECT_EQ(outcome.out, "");
    expect_one_paragraph(outcome, parts);
  }
  // False where it ended before.
  bool wait_for_pause(Process& process) const {
    return process.wait_until([&] { return exists("paused") && !read("paused").empty(); });
  }
  void let_go() const { fs::remove(path("paused")); }

  // English text of 11 kB: the licence.
  void write_text(const std::string& name) const {
    fs::copy_file(fs::path(MESHTRAIN_SOURCE_DIR) / "LICENSE", path(name));
  }

  // A config that trains `preset` on text.txt into the folder run/, in milliseconds a step.
  void write_config(const std::string& name, const std::string& preset) const {
    if (!exists("text.txt")) write_text("text.txt");
    write(name, "[model]\npreset = \"" + preset + "\"\n" + R"(
[data]
train = "text.txt"
seq_len = 32

[train]
steps = 20
global_batch = 4
micro_batch = 2

[optimizer]
lr = 3e-3
warmup = 4

[precision]
compute = "fp32"

[output]
dir = "run"

[machine]
peak_tflops = "off"
threads = 1
)");
  }

  // The lines of a run's metrics.jsonl; a last one that is not whole yet is left out.
  std::vector<nlohmann::json> metrics(const std::string& run_folder) const {
    std::vector<nlohmann::json> lines;
    const std::string text = exists(run_folder + "/metrics.jsonl") ? read(run_folder + "/metrics.jsonl") : "";
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
    }
    return lines;
  }

  // The metrics without what a clock says: equal for runs that gave the same bits.
  std::vector<nlohmann::json> bits_of_metrics(const std::string& run_folder) const {
    std::vector<nlohmann::json> lines = metrics(run_folder);
    for (nlohmann::json& line : lines) {
      for (const char* key : {"tokens_per_second", "step_seconds", "mfu"}) line.erase(key);
    }
    return lines;
  }

  fs::path dir_;
};

}  // namespace meshtrain
