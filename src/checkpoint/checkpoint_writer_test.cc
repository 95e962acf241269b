#include "checkpoint/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include "checkpoint/checkpoint_testing.h"

namespace meshtrain {
namespace {

// Dies with kill -9 after each step of writing and pruning in turn; what was committed before must load.
TEST_F(CheckpointTest, AKillAfterAnyStepLosesNothingCommitted) {
  const TinyRun second(2);
  int kills = 0;
  for (int at = 0;; ++at) {
    fs::remove_all(dir_);
    write(TinyRun(1));
    int count = 0;
    bool renamed = false;
    const int status = in_child([&] {
      const WriteHook hook = [&](std::string_view, std::string_view) {
        if (count++ == at) raise(SIGKILL);
      };
      write(second, hook);
      prune_checkpoints(dir_, 1, hook);
    });
    if (status == 0) break;
    ASSERT_EQ(status, -SIGKILL);
    ++kills;
    renamed = fs::exists(path(2) + "/manifest.json");
    EXPECT_EQ(load_newest(), renamed ? 2 : 1);
    // The next run takes up from there.
    CheckpointWriter writer(writer_options(1), nullptr);
    writer.write(second.contents);
    EXPECT_EQ(load_newest(), 2);
    EXPECT_EQ(committed(), (std::vector<std::int64_t>{2}));
  }
  EXPECT_GE(kills, 15);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{2}));
}

// The same at moments that nobody chose.
TEST_F(CheckpointTest, AKillAtAnyMomentLosesNothingCommitted) {
  constexpr std::int64_t kWidth = 100000;
  std::int64_t last = -1;
  // On a slow disk the first moments come before the first commit.
  for (int round = 0; round < 25 || (last < 1 && round < 500); ++round) {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<std::byte> copy(3 << 20);
      CheckpointWriter writer(round % 2 == 1 ? async_options(2, copy) : writer_options(2), nullptr);
      for (std::int64_t step = last + 1;; ++step) writer.write(TinyRun(step, kWidth).contents);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 1777 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::int64_t newest = load_newest(kWidth);
    EXPECT_GE(newest, last);
    last = newest;
  }
  EXPECT_GT(last, 0);
}

TEST_F(CheckpointTest, AFailureAtAnyStepIsCleanedUpAndReported) {
  write(TinyRun(1));
  int failures = 0;
  for (int at = 0;; ++at) {
    int count = 0;
    bool failed = false;
    try {
      write(TinyRun(2), [&](std::string_view step, std::string_view) {
        if (count++ == at) throw_run_error("cannot {}: No space left on device.", step);
      });
    } catch (const RunError& error) {
      failed = true;
      expect_contains(error.what(), {"step 2", "No space left on device", "intact", "step-00000001"});
    }
    if (!failed) break;
    ++failures;
    EXPECT_FALSE(fs::exists(path(2)));
    EXPECT_EQ(load_newest(), 1);
  }
  EXPECT_GE(failures, 10);
  EXPECT_EQ(load_newest(), 2);
}

TEST_F(CheckpointTest, AFullDiskIsARunErrorThatNamesWhatIsLeft) {
  constexpr std::int64_t kWidth = 100000;  // 1.2 MB of weights
  write(TinyRun(1, kWidth));
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{500'000}, rlim_t{1'200'100}}) {
    const int status = in_child([&] {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit most = {limit, limit};
      setrlimit(RLIMIT_FSIZE, &most);
      try {
        write(TinyRun(2, kWidth));
      } catch (const RunError& error) {
        const std::string message = error.what();
        const bool good = message.find("File too large") != std::string::npos &&
                          message.find("step-00000001") != std::string::npos;
        _exit(good ? 42 : 43);
      }
    });
    EXPECT_EQ(status, 42) << limit;
    EXPECT_FALSE(fs::exists(path(2)));
    EXPECT_EQ(load_newest(kWidth), 1);
  }
}

TEST_F(CheckpointTest, TheFirstCheckpointThatFailsSaysThatThereIsNone) {
  const std::string message = message_of<RunError>(
      [&] { write(TinyRun(1), [](std::string_view, std::string_view) { throw_run_error("no."); }); });
  expect_contains(message, {"There is no earlier checkpoint", dir_});
}

TEST(FileWriter, DeviceFull) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  FileWriter writer("/dev/full");
  expect_contains(message_of<RunError>([&] { writer.write("x"); }), {"/dev/full", "No space left on device"});
}

// --- The run's writer -----------------------------------------------------------------------------

TEST_F(CheckpointTest, WriterKeepsAndPrunes) {
  for (const bool async : {false, true}) {
    fs::remove_all(dir_);
    std::vector<std::byte> copy(4096);
    CheckpointWriter writer(async ? async_options(2, copy) : writer_options(2), nullptr);
    for (std::int64_t step = 1; step <= 4; ++step) writer.write(TinyRun(step).contents);
    writer.flush();
    EXPECT_EQ(committed(), (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(writer.stats().saves, 4);
    EXPECT_EQ(writer.stats().bytes, TinyRun(4).contents.bytes());
  }
}

TEST_F(CheckpointTest, AsyncWriterTakesACopy) {
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::vector<std::byte> copy(4096);
  CheckpointWriter writer(async_options(0, copy,
                                        [gate](std::string_view step, std::string_view) {
                                          if (!step.starts_with("copy")) gate.wait();
                                        }),
                          nullptr);
  {
    TinyRun run(5);
    writer.write(run.contents);  // returns although nothing can be written yet
    std::fill(run.weight.begin(), run.weight.end(), -1.0F);
  }
  EXPECT_EQ(newest_checkpoint(dir_), std::nullopt);
  go.set_value();
  writer.flush();
  EXPECT_EQ(load_newest(), 5);
}

TEST_F(CheckpointTest, AsyncErrorsSurfaceAtTheNextCall) {
  bool fail = true;
  std::vector<std::byte> copy(4096);
  CheckpointWriter writer(async_options(0, copy,
                                        [&fail](std::string_view step, std::string_view) {
                                          if (fail && !step.starts_with("copy")) {
                                            throw_run_error("cannot {}: No space left on device.", step);
                                          }
                                        }),
                          nullptr);
  writer.write(TinyRun(1).contents);
  expect_contains(message_of<RunError>([&] { writer.flush(); }), {"No space left"});
  writer.write(TinyRun(1).contents);
  expect_contains(message_of<RunError>([&] { writer.write(TinyRun(2).contents); }),
                  {"step 1", "No space left"});
  fail = false;
  writer.write(TinyRun(3).contents);
  EXPECT_NO_THROW(writer.flush());
  EXPECT_EQ(load_newest(), 3);
  writer.write(TinyRun(4).contents);
  // Destroyed while writing: waits.
}

TEST_F(CheckpointTest, APlaceThatCannotBeWrittenToIsRefused) {
  fs::create_directories(dir_);
  std::ofstream(dir_ + "/file") << "x";
  expect_contains(message_of<UserError>([&] { prepare_checkpoint_directory(dir_ + "/file"); }),
                  {"checkpoint.dir", dir_ + "/file"});
  EXPECT_THROW(prepare_checkpoint_directory("/proc/nowhere"), UserError);
}

}  // namespace
}  // namespace meshtrain
