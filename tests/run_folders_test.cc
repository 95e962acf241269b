// Two runs that would train in one folder.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "program.h"

namespace meshtrain {
namespace {

class RunFolders : public ProgramTest {
 protected:
  // As the run in whole/, which nothing disturbed.
  void expect_whole(const std::string& folder) const {
    EXPECT_EQ(bits_of_metrics(folder), bits_of_metrics("whole"));
    const std::string last = "/checkpoints/" + checkpoint_name(20);
    EXPECT_EQ(tensors_of(folder + last), tensors_of("whole" + last));
  }
};

// By any other run, whichever of its folders that would have; and one that was killed is not in the way.
TEST_F(RunFolders, ARunThatGoesOnIsLeftAlone) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=5"};
  succeed(train + set({"output.dir=whole"}));
  const std::string run_folder = "output.dir = \"run\" is in use";
  // Half of the deadline is how long they try.
  const std::vector<std::pair<Arguments, std::string>> others = {
      {{"--resume", "-s", "mesh.deadline=0.1"}, run_folder},
      {{"-s", "mesh.deadline=0.1"}, run_folder},
      {{"--ranks", "2", "-s", "mesh.deadline=5"}, run_folder},
      {set({"output.dir=other", "checkpoint.dir=run/checkpoints", "mesh.deadline=0.1"}) + Arguments{"--resume"},
       "checkpoint.dir = \"run/checkpoints\" is in use"}};
  for (const bool killed : {false, true}) {
    fs::remove_all(path("run"));
    Process first(MESHTRAIN_BINARY, train, dir_, pausing_at("micro-step:12:0"));
    ASSERT_TRUE(wait_for_pause(first));
    for (const auto& [words, message] : others) {
      if (killed) break;
      SCOPED_TRACE(testing::PrintToString(words));
      const Outcome other = run(train + words);
      EXPECT_EQ(other.status, 2) << other;
      expect_contains(other.err, {message, "another run trains there"});
      EXPECT_FALSE(exists("other") || exists("run.1"));
    }
    if (killed) first.signal(SIGKILL);
    let_go();
    if (killed) succeed(train + Arguments{"--resume"});
    EXPECT_EQ(first.finish().status, killed ? -SIGKILL : 0);
    expect_whole("run");
  }
}

// What a run writes to is gone or elsewhere: it ends, with what was saved before intact.
TEST_F(RunFolders, OneThatIsRenamedOrRemovedEndsTheRun) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=5", "-s", "numerics.reduction=tree"};
  succeed(train + set({"output.dir=whole"}));
  for (const std::string ranks : {"1", "2"}) {
    for (const bool removed : {false, true}) {
      SCOPED_TRACE(ranks + (removed ? " removed" : " renamed"));
      fs::remove_all(path("run"));
      fs::remove_all(path("moved"));
      Process process(MESHTRAIN_BINARY, train + Arguments{"--ranks", ranks}, dir_,
                      pausing_at("collective:12:0"));
      ASSERT_TRUE(wait_for_pause(process));
      if (removed) fs::remove_all(path("run"));
      if (!removed) fs::rename(path("run"), path("moved"));
      let_go();
      const Outcome outcome = process.finish();
      EXPECT_EQ(outcome.status, 1) << outcome;
      EXPECT_FALSE(exists("run")) << "nothing is written there any more";
      expect_contains(outcome.err, {"output.dir = \"run\" was", removed ? "removed" : "renamed to",
                                    "while the run trained in it"});
      EXPECT_EQ(outcome.err.find("No checkpoint was saved"), std::string::npos) << outcome;
      if (removed) continue;
      succeed({"train", "moved", "--resume", "--ranks", ranks});
      expect_whole("moved");
    }
  }
  // The checkpoints alone.
  Process process(MESHTRAIN_BINARY, train + set({"checkpoint.dir=saved", "output.dir=other"}), dir_,
                  pausing_at("micro-step:12:0"));
  ASSERT_TRUE(wait_for_pause(process));
  fs::rename(path("saved"), path("saved-elsewhere"));
  let_go();
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err, {"checkpoint.dir = \"saved\" was renamed to"});
}

// One waits for the other, and then goes on with its run, or moves it aside.
TEST_F(RunFolders, TwoThatBeginTogetherDoNotMix) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=5"};
  succeed(train + set({"output.dir=whole"}));
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    for (const char* folder : {"run", "run.1"}) fs::remove_all(path(folder));
    const Arguments words = train + (round % 2 == 1 ? Arguments{"--resume"} : Arguments{});
    Process first(MESHTRAIN_BINARY, words, dir_);
    Process second(MESHTRAIN_BINARY, words, dir_);
    std::size_t done = 0;
    for (Process* one : {&first, &second}) {
      const Outcome outcome = one->finish();
      EXPECT_TRUE(outcome.status == 0 || outcome.status == 2) << outcome;
      done += outcome.status == 0 ? 1 : 0;
    }
    EXPECT_EQ(done, exists("run.1") ? 2U : 1U);
    expect_whole("run");
    if (exists("run.1")) expect_whole("run.1");
  }
}

}  // namespace
}  // namespace meshtrain
