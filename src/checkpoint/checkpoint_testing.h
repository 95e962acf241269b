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
    contents.model = {{"weight", DType::kF32, {width, 3}, weight.data()},
                      {"bias", DType::kF32, {3}, bias.data()}};
    contents.optimizer = {{"weight.m", DType::kF32, {width, 3}, m.data()}};
    contents.state = {{"position", step * 32}, {"loss_scale", 65536.0}};
  }
  std::vector<TensorDestination> model() {
    return {destination("weight", {width, 3}, weight), destination("bias", {3}, bias)};
  }
  std::vector<TensorDestination> optimizer() { return {destination("weight.m", {width, 3}, m)}; }
  static TensorDestination destination(std::string name, const Shape& shape, std::vector<float>& to) {
    return {std::move(name), DType::kF32, shape, {{0, shape.numel(), to.data()}}};
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
    read_tensors(checkpoint.model(), loaded.model());
    read_tensors(checkpoint.optimizer(), loaded.optimizer());
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
