#include "telemetry/progress.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace meshtrain {
namespace {

// What a Progress under a clock of our own writes.
class ProgressTest : public testing::Test {
 protected:
  ProgressTest() : out_(open_memstream(&buffer_, &size_)) {
    options_.total_steps = 100;
    options_.now = [this] { return time_; };
  }
  ~ProgressTest() override {
    std::fclose(out_);
    std::free(buffer_);  // NOLINT: open_memstream's
  }

  std::string written() {
    std::fflush(out_);
    return {buffer_, size_};
  }
  void advance(double seconds) {
    time_ += std::chrono::duration_cast<ProgressClock::duration>(std::chrono::duration<double>(seconds));
  }

  ProgressOptions options_;
  ProgressClock::time_point time_;
  char* buffer_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* out_;
};

StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 2.34567,
          .grad_norm = 0.812,
          .lr = 3e-4,
          .tokens = 0,
          .tokens_per_second = 12345.0,
          .step_seconds = 2.0,
          .mfu = 0.4118,
          .loss_scale = {}};
}

TEST(ProgressText, SaysWhatMatters) {
  EXPECT_EQ(progress_text(step(12), 200, 130.0),
            "step 12/200  loss 2.3457  norm 0.81  lr 3.00e-04  12.3k tokens/s  MFU 41.2%  2m10s left");
  StepMetrics unknown = step(1);
  unknown.mfu.reset();
  unknown.tokens_per_second = std::numeric_limits<double>::infinity();
  unknown.skipped = true;
  EXPECT_EQ(progress_text(unknown, 2, std::numeric_limits<double>::quiet_NaN()),
            "step 1/2  loss 2.3457  norm 0.81  lr 3.00e-04  n/a tokens/s  n/a left  (skipped: overflow)");
}

TEST(ProgressText, WhatIsNotANumberHasNoSign) {
  StepMetrics metrics = step(1);
  for (const double nan :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
    metrics.loss = metrics.grad_norm = nan;
    EXPECT_EQ(progress_text(metrics, 2, 1.0).substr(0, 28), "step 1/2  loss nan  norm nan");
  }
}

// Whole fields go, the least important first.
TEST(ProgressText, IsShortenedToTheWidth) {
  const std::vector<std::string> expected = {
      "step 12/200  loss 2.3457  norm 0.81  lr 3.00e-04  12.3k tokens/s  MFU 41.2%  2m10s left",
      "step 12/200  loss 2.3457  norm 0.81  12.3k tokens/s  MFU 41.2%  2m10s left",
      "step 12/200  loss 2.3457  12.3k tokens/s  MFU 41.2%  2m10s left",
      "step 12/200  loss 2.3457  12.3k tokens/s  2m10s left",
      "step 12/200  loss 2.3457  2m10s left",
      "step 12/200  loss 2.3457"};
  for (int width = 20; width <= 100; ++width) {
    const auto fits = std::find_if(expected.begin(), expected.end(), [&](const std::string& text) {
      return text.size() <= static_cast<std::size_t>(width);
    });
    EXPECT_EQ(progress_text(step(12), 200, 130.0, width), fits == expected.end() ? expected.back() : *fits)
        << width;
  }
  StepMetrics skipped = step(12345678);
  skipped.skipped = true;
  EXPECT_EQ(progress_text(skipped, 100000000, 1e6, 70),
            "step 12345678/100000000  loss 2.3457  (skipped: overflow)");
}

TEST_F(ProgressTest, ALogGetsALineNowAndThen) {
  options_.seconds_between = 10.0;
  Progress progress(out_, options_);
  for (std::int64_t i = 1; i <= 100; ++i, advance(1.0)) progress.step(step(i));
  progress.finish();
  const std::string text = written();
  EXPECT_EQ(text.find("step 1/100  "), 0U);
  // Steps 1, 11, 21 … 91 and the last one.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);
  EXPECT_NE(text.find("\nstep 11/100"), std::string::npos);
  EXPECT_EQ(text.find("step 12/100"), std::string::npos);
  EXPECT_NE(text.find("\nstep 100/100"), std::string::npos);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST_F(ProgressTest, ATerminalHasOneRewrittenLine) {
  options_.terminal = true;
  options_.width = [] { return 30; };
  options_.seconds_between = 0.1;
  Progress progress(out_, options_);
  progress.step(step(1));  // stays
  advance(0.01);
  progress.step(step(2));  // too soon
  advance(1.0);
  progress.step(step(3));
  progress.eval({.step = 3, .loss = 2.0, .bits_per_byte = 1.25, .tokens = 1984});
  advance(1.0);
  progress.step(step(4));
  advance(1.0);
  progress.step(step(5));
  progress.finish();
  progress.finish();  // nothing more to end
  const std::string clear = "\r\x1b[K";
  const auto line = [](std::int64_t i) { return fmt::format("step {}/100  loss 2.3457", i); };
  EXPECT_EQ(written(), line(1) + "\n" + clear + line(3) + clear +
                           "step 3  eval loss 2.0000\n1.2500 bits/byte  over 1984\ntokens\n" + clear + line(4) +
                           clear + line(5) + "\n");
}

TEST_F(ProgressTest, ATerminalKeepsAHistory) {
  options_.terminal = true;
  options_.seconds_between = 0.1;
  options_.seconds_kept = 30.0;
  Progress progress(out_, options_);
  for (std::int64_t i = 1; i <= 100; ++i, advance(1.0)) progress.step(step(i));
  progress.finish();
  std::vector<std::string> kept;  // what a reader finds when the run is over
  std::istringstream lines(written());
  for (std::string line; std::getline(lines, line);) {
    kept.push_back(line.substr(line.rfind('K') == std::string::npos ? 0 : line.rfind('K') + 1, 10));
  }
  EXPECT_EQ(kept,
            (std::vector<std::string>{"step 1/100", "step 31/10", "step 61/10", "step 91/10", "step 100/1"}));
}

// The width is asked for each line.
TEST_F(ProgressTest, AWindowMayBecomeNarrower) {
  options_.terminal = true;
  int columns = 200;
  options_.width = [&] { return columns; };
  Progress progress(out_, options_);
  progress.step(step(1));
  columns = 30;
  progress.step(step(100));
  const std::string text = written();
  EXPECT_NE(text.find("lr 3.00e-04"), std::string::npos);
  EXPECT_EQ(text.substr(text.find("step 100")), "step 100/100  loss 2.3457\n");
}

TEST_F(ProgressTest, TimeLeftForgetsTheFirstStep) {
  Progress progress(out_, options_);
  StepMetrics slow = step(1);
  slow.step_seconds = 60.0;
  progress.step(slow);
  progress.step(step(2));
  progress.step(step(40));
  const std::string text = written();
  EXPECT_NE(text.find("1h39m left"), std::string::npos) << text;
  EXPECT_NE(text.find("3m16s left"), std::string::npos) << text;  // 98 · 2 s
  EXPECT_NE(text.find("2m00s left"), std::string::npos) << text;  // 60 · 2 s
}

TEST_F(ProgressTest, Messages) {
  Progress progress(out_, options_);
  progress.message("resumed from step 7");
  progress.eval({.step = 7, .loss = 2.0, .bits_per_byte = {}, .tokens = 512});
  EXPECT_EQ(written(), "resumed from step 7\nstep 7  eval loss 2.0000  over 512 tokens\n");
}

TEST(ProgressOptionsFor, AFileIsNoTerminal) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  const ProgressOptions options = progress_options_for(file.get());
  EXPECT_FALSE(options.terminal);
  EXPECT_EQ(options.seconds_between, 10.0);
}

TEST(ProgressWrites, AClosedOutputIsIgnored) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/dev/full", "w"), std::fclose);
  if (!file) GTEST_SKIP() << "no /dev/full here";
  ProgressOptions options;
  options.total_steps = 2;
  Progress progress(file.get(), options);
  EXPECT_NO_THROW(progress.step(step(1)));
  EXPECT_NO_THROW(progress.finish());
}

}  // namespace
}  // namespace meshtrain
