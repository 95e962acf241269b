// What a command that was interrupted leaves behind: nothing of its own making.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <set>

#include "checkpoint/partial_folder.h"
#include "program.h"

namespace meshtrain {
namespace {

class Interrupts : public ProgramTest {
 protected:
  Interrupts() {
    write_config("a.toml", "gpt2-tiny");
    // A reader of this waits until somebody writes.
    mkfifo(path("endless.txt").c_str(), 0600);
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir_)) {
      const std::string name = fs::relative(entry.path(), dir_).string();
      if (!name.starts_with(".std")) names.insert(name);
    }
    return names;
  }

  // Ends `arguments` by each signal once `working` is there, and expects that it ends by it and leaves nothing.
  void expect_nothing_left(const Arguments& arguments, const std::string& working) const {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      SCOPED_TRACE(signal);
      const std::set<std::string> before = files();
      // This process may ignore some of them, as under nohup.
      Process process(MESHTRAIN_BINARY, arguments, dir_, [signal] { std::signal(signal, SIG_DFL); });
      ASSERT_TRUE(process.wait_until([&] { return exists(working); }));
      process.signal(signal);
      EXPECT_EQ(process.finish().status, -signal);
      EXPECT_EQ(files(), before);
    }
  }
};

TEST_F(Interrupts, Tokenizing) {
  expect_nothing_left({"tokenize", "endless.txt", "--tokenizer", "bytes", "--out", "tokens"},
                      "tokens.idx.partial");
}

TEST_F(Interrupts, OneThatIsIgnoredStaysIgnored) {
  Process process(MESHTRAIN_BINARY, {"tokenize", "endless.txt", "--tokenizer", "bytes", "--out", "tokens"},
                  dir_, [] { std::signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(process.wait_until([&] { return exists("tokens.idx.partial"); }));
  process.signal(SIGHUP);
  // It goes on, and ends; what it has not opened yet cannot be written to.
  std::signal(SIGPIPE, SIG_IGN);
  process.wait_until([&] {
    const int end = open(path("endless.txt").c_str(), O_WRONLY | O_NONBLOCK);
    const bool written = end >= 0 && ::write(end, "some text", 9) == 9;
    if (end >= 0) close(end);
    return written && exists("tokens.bin");
  });
  EXPECT_EQ(process.finish().status, 0);
  EXPECT_TRUE(exists("tokens.bin") && exists("tokens.idx") && !exists("tokens.bin.partial"));
}

TEST_F(Interrupts, TrainingATokenizer) {
  // Large enough to take a while: the signal comes as soon as the file is there.
  std::string text;
  for (std::int64_t i = 0; i < 300'000; ++i)
    text += "word" + std::to_string(i * 7919 % 100'003) + (i % 9 == 0 ? "\n" : " ");
  write("words.txt", text);
  expect_nothing_left({"tokenize", "words.txt", "--train-sentencepiece", "m", "--vocab", "4000"},
                      "m.model.partial");
}

// A second attempt takes the place of one that was killed.
TEST_F(Interrupts, WhatAKillLeavesGoesWithTheNextAttempt) {
  const Arguments arguments = {"tokenize", "endless.txt", "--tokenizer", "bytes", "--out", "tokens"};
  {
    Process process(MESHTRAIN_BINARY, arguments, dir_);
    ASSERT_TRUE(process.wait_until([&] { return exists("tokens.idx.partial"); }));
    process.signal(SIGKILL);
    process.finish();
  }
  EXPECT_TRUE(exists("tokens.bin.partial"));
  succeed({"tokenize", "text.txt", "--tokenizer", "bytes", "--out", "tokens"});
  EXPECT_FALSE(exists("tokens.bin.partial") || exists("tokens.idx.partial"));
  EXPECT_TRUE(exists("tokens.bin") && exists("tokens.idx"));
}

TEST_F(Interrupts, AnImportThatWasKilledIsReplaced) {
  const std::string model = MESHTRAIN_TEST_DATA "/huggingface/qwen3";
  { const PartialFolder killed((dir_ / "elsewhere").string()); }
  EXPECT_FALSE(exists("elsewhere.partial"));
  fs::create_directories(path("ckpt.partial/contents"));
  write("ckpt.partial/.meshtrain-partial", "");
  write("ckpt.partial/contents/model.safetensors", "half of it");
  succeed({"ckpt", "import", model, "--out", "ckpt"});
  EXPECT_FALSE(exists("ckpt.partial"));
  succeed({"ckpt", "verify", "ckpt"});
  // What is not ours stays.
  fs::create_directories(path("other.partial"));
  write("other.partial/mine", "precious");
  expect_refused({"ckpt", "import", model, "--out", "other"}, {"other.partial", "remove or rename"});
  EXPECT_EQ(read("other.partial/mine"), "precious");
}

TEST_F(Interrupts, AFullDiskLeavesNothing) {
  const auto small_files = [] {
    const rlimit limit = {1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  succeed({"train", "a.toml", "-s", "train.steps=5"});
  const std::set<std::string> before = files();
  const std::vector<Arguments> commands = {
      {"tokenize", "text.txt", "--tokenizer", "bytes", "--out", "tokens"},
      {"tokenize", "text.txt", "--train-sentencepiece", "m", "--vocab", "300"},
      {"plan", "a.toml", "--ranks", "2", "-s", "mesh.pp=2", "--trace", "plan.json"},
      {"ckpt", "export", "run", "--out", "model"},
      {"ckpt", "import", MESHTRAIN_TEST_DATA "/huggingface/qwen3", "--out", "ckpt"}};
  for (const Arguments& arguments : commands) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Outcome outcome = run(arguments, small_files);
    EXPECT_EQ(outcome.status, 1) << outcome;
    EXPECT_EQ(files(), before);
  }
}

}  // namespace
}  // namespace meshtrain
