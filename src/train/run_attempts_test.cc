#include "train/run_attempts.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "comm/engines.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class Attempts : public testing::Test {
 protected:
  Attempts() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_attempts_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
    std::ofstream(dir_ / "text.txt") << std::string(2000, 'x') << "the quick brown fox";
    config_ = parse_config("[model]\npreset = \"gpt2-tiny\"\n", "test",
                           {"data.train=" + (dir_ / "text.txt").string(), "data.seq_len=16", "train.steps=2",
                            "train.global_batch=2", "train.micro_batch=1", "machine.peak_tflops=off",
                            "machine.threads=1", "output.dir=" + (dir_ / "run").string()});
  }
  ~Attempts() override { fs::remove_all(dir_); }

  // What the checkpoint's code takes for a committed one.
  std::string commit(const std::string& folder, std::int64_t step) const {
    const fs::path path = dir_ / folder / "checkpoints" / checkpoint_name(step);
    fs::create_directories(path);
    std::ofstream(path / kManifestName) << "{}";
    return path.string();
  }

  fs::path dir_;
  Config config_;
};

TEST_F(Attempts, BeginAtStep1UntilThereIsACheckpoint) {
  const RunAttempts attempts(config_, {});
  const RunAttempts::Next first = attempts.next();
  EXPECT_EQ(first.from, "step 1");
  EXPECT_FALSE(first.options.resume);
  EXPECT_TRUE(first.options.restarted);
  fs::create_directories(dir_ / "run");
  std::ofstream(dir_ / "run" / "metrics.jsonl") << "{}\n";
  EXPECT_EQ(attempts.next().from, "step 1");
  EXPECT_TRUE(attempts.next().options.restarted) << "or its metrics would be moved away";
  const std::string own = commit("run", 5);
  const RunAttempts::Next second = attempts.next();
  EXPECT_EQ(second.from, own);
  EXPECT_TRUE(second.options.resume && second.options.restarted);
}

TEST_F(Attempts, OptionsStayButWhereItBegins) {
  const RunAttempts attempts(config_, {.resume_from = "elsewhere", .stop_at_step = 7, .trace = true});
  EXPECT_EQ(attempts.next().from, "elsewhere");
  commit("run", 5);
  const RunOptions options = attempts.next().options;
  EXPECT_EQ(options.resume_from, "");
  EXPECT_EQ(options.stop_at_step, 7);
  EXPECT_TRUE(options.trace);
}

// A rank may be lost before the run has moved the other one out of its folder, or after.
TEST_F(Attempts, AnotherRunOfTheFolderIsNeverGoneOnWith) {
  commit("run", 90);
  const RunAttempts attempts(config_, {});
  const RunAttempts::Next before = attempts.next();
  EXPECT_EQ(before.from, "step 1");
  EXPECT_FALSE(before.options.resume);
  EXPECT_FALSE(before.options.restarted) << "the other run would be written over";
  fs::rename(dir_ / "run", dir_ / "run.1");
  EXPECT_TRUE(attempts.next().options.restarted);
  fs::create_directories(dir_ / "run");
  EXPECT_TRUE(attempts.next().options.restarted);
  EXPECT_FALSE(attempts.next().options.resume);
  const std::string own = commit("run", 5);
  EXPECT_EQ(attempts.next().from, own);
}

TEST_F(Attempts, ARunThatGoesOnGoesOnFromItsNewest) {
  const std::string earlier = commit("run", 10);
  const RunAttempts attempts(config_, {.resume = true});
  EXPECT_EQ(attempts.next().from, earlier);
  EXPECT_TRUE(attempts.next().options.resume);
  const std::string own = commit("run", 15);
  EXPECT_EQ(attempts.next().from, own);
}

// --resume-from an early checkpoint sets later ones aside, unless it is lost before.
TEST_F(Attempts, LaterCheckpointsOfTheEarlierRunAreNotItsOwn) {
  const std::string start = commit("run", 10);
  const std::string later = commit("run", 20);
  const RunAttempts attempts(config_, {.resume_from = start});
  EXPECT_EQ(attempts.next().from, start);
  EXPECT_EQ(attempts.next().options.resume_from, start);
  fs::rename(later, later + ".superseded");
  EXPECT_EQ(attempts.next().options.resume_from, start);
  EXPECT_EQ(commit("run", 20), later);
  EXPECT_EQ(attempts.next().from, later);
  EXPECT_EQ(attempts.next().options.resume_from, "");
}

// Lost after its last checkpoint, it has nothing left but to say so.
TEST_F(Attempts, ARunThatIsDoneIsFinishedInPeace) {
  const auto train = [&](const RunOptions& options) { run_training(config_, options, *make_single_world()); };
  for (const std::int64_t stop : {0, 1}) {
    fs::remove_all(dir_ / "run");
    const RunAttempts attempts(config_, {.stop_at_step = stop});
    train({.stop_at_step = stop});
    EXPECT_THROW(train({.resume = true, .stop_at_step = stop}), UserError);
    fs::remove(dir_ / "run" / "summary.json");
    const std::string metrics = (dir_ / "run" / "metrics.jsonl").string();
    const auto bytes = fs::file_size(metrics);
    for (const RunOptions& options : {attempts.next().options, {.resume = true, .stop_at_step = stop}}) {
      train(options);
      EXPECT_TRUE(fs::remove(dir_ / "run" / "summary.json"));
      EXPECT_EQ(fs::file_size(metrics), bytes);
    }
  }
}

}  // namespace
}  // namespace meshtrain
