#include "telemetry/metrics.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 2.5,
          .grad_norm = 1.0,
          .lr = 1e-4,
          .tokens = number * 8192,
          .tokens_per_second = 1234.5,
          .step_seconds = 0.25,
          .mfu = 0.4,
          .loss_scale = {}};
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ =
        (fs::temp_directory_path() / fmt::format("meshtrain_metrics_{}_{}", info->name(), getpid())).string();
    fs::remove(path_);
  }
  ~MetricsTest() override { fs::remove(path_); }
  std::string path_;
};

TEST(MetricsLine, HasTheContractsKeys) {
  EXPECT_EQ(to_json_line(step(3)),
            R"({"step": 3, "loss": 2.5, "grad_norm": 1.0, "lr": 0.0001, "tokens": 24576, )"
            R"("tokens_per_second": 1234.5, "step_seconds": 0.25, "mfu": 0.4, "skipped": false})");
  StepMetrics fp16 = step(3);
  fp16.loss_scale = 32768.0;
  EXPECT_EQ(to_json_line(fp16),
            R"({"step": 3, "loss": 2.5, "grad_norm": 1.0, "lr": 0.0001, "tokens": 24576, )"
            R"("tokens_per_second": 1234.5, "step_seconds": 0.25, "mfu": 0.4, "skipped": false, )"
            R"("loss_scale": 32768.0})");
  EXPECT_EQ(to_json_line(EvalMetrics{.step = 3, .loss = 2.5, .bits_per_byte = 1.25, .tokens = 1984}),
            R"({"step": 3, "eval_loss": 2.5, "eval_bits_per_byte": 1.25, "eval_tokens": 1984})");
}

TEST(MetricsLine, NumbersReadBackToTheSameBits) {
  for (const double value : {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, 1e22, 123456789012345678.0,
                             static_cast<double>(0.1F), -0.0, 2.0}) {
    StepMetrics metrics = step(1);
    metrics.loss = value;
    const double read = Json::parse(to_json_line(metrics))["loss"].get<double>();
    EXPECT_EQ(std::memcmp(&read, &value, sizeof value), 0) << value;
  }
}

TEST(MetricsLine, WhatIsNotFiniteOrNotKnownIsNull) {
  StepMetrics metrics = step(1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.mfu.reset();
  metrics.skipped = true;
  const Json json = Json::parse(to_json_line(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_TRUE(json["mfu"].is_null());
  EXPECT_EQ(json["skipped"], true);
  EXPECT_TRUE(Json::parse(to_json_line(
      EvalMetrics{.step = 1, .loss = 1.0, .bits_per_byte = {}, .tokens = 0}))["eval_bits_per_byte"]
                  .is_null());
}

TEST_F(MetricsTest, AppendsALineAStep) {
  MetricsFile file(path_, std::nullopt);
  file.append(step(1));
  EXPECT_EQ(contents(path_), to_json_line(step(1)) + "\n");  // at once
  file.append(EvalMetrics{.step = 1, .loss = 2.0, .bits_per_byte = 1.0, .tokens = 0});
  file.append(step(2));
  file.sync();
  EXPECT_EQ(contents(path_),
            to_json_line(step(1)) + "\n" +
                to_json_line(EvalMetrics{.step = 1, .loss = 2.0, .bits_per_byte = 1.0, .tokens = 0}) + "\n" +
                to_json_line(step(2)) + "\n");
}

TEST_F(MetricsTest, ANewRunBeginsAnEmptyFile) {
  MetricsFile(path_, std::nullopt).append(step(1));
  MetricsFile(path_, std::nullopt).append(step(7));
  EXPECT_EQ(contents(path_), to_json_line(step(7)) + "\n");
}

TEST_F(MetricsTest, AResumedRunWritesNoStepTwice) {
  {
    MetricsFile file(path_, std::nullopt);
    for (std::int64_t i = 1; i <= 12; ++i) file.append(step(i));
    file.append(EvalMetrics{.step = 12, .loss = 1.0, .bits_per_byte = {}, .tokens = 0});
  }
  MetricsFile file(path_, 9);
  for (std::int64_t i = 10; i <= 12; ++i) file.append(step(i));
  std::istringstream lines(contents(path_));
  std::int64_t expected = 1;
  for (std::string line; std::getline(lines, line); ++expected) EXPECT_EQ(line, to_json_line(step(expected)));
  EXPECT_EQ(expected, 13);
}

TEST_F(MetricsTest, AResumedRunWithoutAFileBeginsOne) {
  MetricsFile(path_, 5).append(step(6));
  EXPECT_EQ(contents(path_), to_json_line(step(6)) + "\n");
}

TEST_F(MetricsTest, SaysWhetherAnEvaluationIsRecorded) {
  EXPECT_FALSE(has_evaluation(path_, 5));  // no file
  MetricsFile file(path_, std::nullopt);
  file.append(step(5));
  EXPECT_FALSE(has_evaluation(path_, 5));
  file.append(EvalMetrics{.step = 5, .loss = 2.0, .bits_per_byte = {}, .tokens = 0});
  EXPECT_TRUE(has_evaluation(path_, 5));
  EXPECT_FALSE(has_evaluation(path_, 4));
}

RollbackMetrics rollback(std::int64_t step, std::int64_t bad_step) {
  RollbackMetrics metrics;
  metrics.step = step;
  metrics.bad_step = bad_step;
  metrics.reason = "gradient norm spike";
  metrics.loss = 2.5;
  metrics.grad_norm = 40.0;
  metrics.threshold = 0.1;
  metrics.left_out = {{48, 4}, {56, 4}};
  return metrics;
}

TEST(MetricsLine, OfARollback) {
  EXPECT_EQ(to_json_line(rollback(10, 13)),
            R"({"step": 10, "rollback": {"bad_step": 13, "reason": "gradient norm spike", "loss": 2.5, )"
            R"("grad_norm": 40.0, "threshold": 0.1, "left_out": [[48, 4], [56, 4]]}})");
  RollbackMetrics metrics = rollback(10, 13);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.threshold.reset();
  const Json json = Json::parse(to_json_line(metrics))["rollback"];
  for (const char* key : {"loss", "grad_norm", "threshold"}) EXPECT_TRUE(json[key].is_null()) << key;
}

TEST_F(MetricsTest, ARollbackCutsTheStepsThatWillBeDoneAgain) {
  const EvalMetrics eval{.step = 2, .loss = 2.0, .bits_per_byte = {}, .tokens = 0};
  MetricsFile file(path_, std::nullopt);
  file.append(step(1));
  file.append(step(2));
  file.append(eval);
  file.append(step(3));
  file.roll_back(rollback(2, 4));
  file.append(step(3));
  file.roll_back(rollback(2, 5));
  file.append(step(3));
  const std::string until_2 =
      to_json_line(step(1)) + "\n" + to_json_line(step(2)) + "\n" + to_json_line(eval) + "\n";
  const std::string events = to_json_line(rollback(2, 4)) + "\n" + to_json_line(rollback(2, 5)) + "\n";
  EXPECT_EQ(contents(path_), until_2 + events + to_json_line(step(3)) + "\n");
  EXPECT_TRUE(has_evaluation(path_, 2));

  // The checkpoint of step 3 knows of the rollbacks to step 2, that of step 2 does not.
  EXPECT_EQ(kept_bytes(contents(path_), 3), contents(path_).size());
  EXPECT_EQ(kept_bytes(contents(path_), 2), until_2.size());
}

TEST_F(MetricsTest, ARollbackOfAFileThatIsGoneIsARunError) {
  MetricsFile file(path_, std::nullopt);
  fs::remove(path_);
  EXPECT_THROW(file.roll_back(rollback(0, 1)), RunError);
}

TEST(KeptBytes, CutsAtTheFirstLaterStepAndAtAnUnfinishedLine) {
  const std::string one = "{\"step\": 1}\n";
  const std::string two = "{\"step\": 2}\n";
  EXPECT_EQ(kept_bytes("", 5), 0U);
  EXPECT_EQ(kept_bytes(one + two, 2), one.size() + two.size());
  EXPECT_EQ(kept_bytes(one + two, 1), one.size());
  EXPECT_EQ(kept_bytes(one + two, 0), 0U);
  EXPECT_EQ(kept_bytes(one + "{\"step\": 2", 5), one.size());
  EXPECT_EQ(kept_bytes(one + "{\"step\": 2}", 5), one.size());  // its end is missing
  // Lines of others do not stop the count.
  EXPECT_EQ(kept_bytes(one + "note\n{}\n[\n" + two + "{\"step\": 9}\n", 2),
            (one + "note\n{}\n[\n" + two).size());
}

TEST_F(MetricsTest, AKilledRunLosesNoLine) {
  const pid_t child = fork();
  if (child == 0) {
    MetricsFile file(path_, std::nullopt);
    for (std::int64_t i = 1; i <= 100; ++i) file.append(step(i));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const std::string text = contents(path_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 100);
}

TEST_F(MetricsTest, Errors) {
  EXPECT_THROW(MetricsFile("/nonexistent/metrics.jsonl", std::nullopt), UserError);
  EXPECT_THROW(MetricsFile(fs::temp_directory_path().string(), std::nullopt), UserError);
}

TEST(MetricsFileErrors, AFullDiskIsARunError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const fs::path link = fs::temp_directory_path() / fmt::format("meshtrain_metrics_full_{}", getpid());
  fs::remove(link);
  fs::create_symlink("/dev/full", link);
  try {
    MetricsFile file(link.string(), std::nullopt);
    file.append(step(1));
    ADD_FAILURE() << "accepted";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(link.string()), std::string::npos) << error.what();
  }
  fs::remove(link);
}

}  // namespace
}  // namespace meshtrain
