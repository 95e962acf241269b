// What the tests of checkpoints share: a tiny run whose every value is known, and children that may die.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_writer.h"

namespace meshtrain {

namespace fs = std::filesystem;

// A model of two parameters whose values are functions of the step.
struct TinyRun {
  explicit TinyRun(std::int64_t step, std::int64_t rows = 64)
      : width(rows), weight(static_cast<std::size_t>(rows) * 3), bias(3), m(weight.size()) {
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] = static_cast<float>(step) + static_cast<float>(i) / 8;
    bias.assign(3, static_cast<float>(step));
    m.assign(m.size(), -static_cast<float>(step));
    contents.step = step;
    contents.model = {whole("weight", {width, 3}, weight), whole("bias", {3}, bias)};
    contents.optimizer = {whole("weight.m", {width, 3}, m)};
    contents.state = {{"position", step * 32}, {"loss_scale", 65536.0}};
  }
  static SavedPiece whole(std::string name, const Shape& shape, const std::vector<float>& values) {
    return {.name = std::move(name), .shape = shape, .range = whole_range(shape), .data = values.data()};
  }
  void read(const Checkpoint& checkpoint) {
    checkpoint.read("weight", {width, 3}, 0, weight);
    checkpoint.read("bias", {3}, 0, bias);
    checkpoint.read("weight.m", {width, 3}, 0, m);
  }

  std::int64_t width;
  std::vector<float> weight;
  std::vector<float> bias;
  std::vector<float> m;
  CheckpointContents contents;
};

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = (fs::temp_directory_path() / fmt::format("meshtrain_checkpoint_{}_{}", info->name(), getpid()))
               .string();
    fs::remove_all(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }

  void write(const TinyRun& run, const WriteHook& hook = {}) const {
    write_checkpoint(path(run.contents.step), run.contents, nullptr, hook);
  }
  // Of a run of one rank.
  CheckpointWriter::Options writer_options(std::int64_t keep, WriteHook hook = {}) const {
    fs::create_directories(dir_);
    return {.directory = dir_, .keep = keep, .async = false, .copy = {}, .hook = std::move(hook)};
  }
  CheckpointWriter::Options async_options(std::int64_t keep, std::vector<std::byte>& copy,
                                          WriteHook hook = {}) const {
    CheckpointWriter::Options options = writer_options(keep, std::move(hook));
    options.async = true;
    options.copy = copy;
    return options;
  }

  std::string path(std::int64_t step) const { return dir_ + "/" + checkpoint_name(step); }

  std::vector<std::int64_t> committed() const {
    std::vector<std::int64_t> steps;
    for (const CheckpointPlace& place : committed_checkpoints(dir_)) steps.push_back(place.step);
    return steps;
  }

  // Loads the newest checkpoint and compares every value; -1 when there is none.
  std::int64_t load_newest(std::int64_t width = 64) const {
    const auto newest = newest_checkpoint(dir_);
    if (!newest) return -1;
    const Checkpoint checkpoint(newest->path);
    TinyRun loaded(0, width);
    loaded.read(checkpoint);
    const TinyRun expected(newest->step, width);
    EXPECT_EQ(loaded.weight, expected.weight);
    EXPECT_EQ(loaded.bias, expected.bias);
    EXPECT_EQ(loaded.m, expected.m);
    EXPECT_EQ(checkpoint.step(), newest->step);
    EXPECT_EQ(checkpoint.state(), expected.contents.state);
    return newest->step;
  }

  std::string dir_;
};

template <class Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

inline void expect_contains(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

// The exit status of `body` in a child process; -signal when it was killed.
inline int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      _exit(99);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace meshtrain
