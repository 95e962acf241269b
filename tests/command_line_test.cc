// Names and paths on the command line: what other programs call things, "~", and names that are folders.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "program.h"

namespace meshtrain {
namespace {

class CommandLine : public ProgramTest {
 protected:
  CommandLine() {
    write_config("a.toml", "gpt2-tiny");
    fs::create_directories(path("home/runs"));
  }

  Outcome at_home(const Arguments& arguments) const {
    return run(arguments, [home = path("home").string()] { setenv("HOME", home.c_str(), 1); });
  }
  void succeed_at_home(const Arguments& arguments) const {
    const Outcome outcome = at_home(arguments);
    EXPECT_EQ(outcome.status, 0) << testing::PrintToString(arguments) << outcome;
  }
};

TEST_F(CommandLine, CommandsOfOtherPrograms) {
  expect_refused({"pretrain", "a.toml"}, {"no command pretrain", "that is `meshtrain train`"});
  expect_refused({"inference", "run"}, {"no command inference", "that is `meshtrain generate`"});
  expect_refused({"preprocess", "text.txt"}, {"that is `meshtrain tokenize`"});
  expect_refused({"export", "run"}, {"that is `meshtrain ckpt export`"});
  expect_refused({"bench", "gemm"}, {"no command gemm", "that is `meshtrain bench matmul`"});
  expect_refused({"ckpt", "checksum"}, {"that is `meshtrain ckpt digest`"});
  const Outcome nothing = run({"zebra"});
  EXPECT_EQ(nothing.err.find("nearest"), std::string::npos) << nothing;
  EXPECT_EQ(nothing.err.find("that is"), std::string::npos) << nothing;
  expect_contains(nothing.err, {"no command zebra", "Commands: train, eval"});
}

TEST_F(CommandLine, OptionsThatAreKeysOfTheConfig) {
  expect_refused({"train", "a.toml", "--learning_rate", "1e-3"},
                 {"no option --learning_rate", "`-s optimizer.lr=VALUE`"});
  expect_refused({"train", "a.toml", "--max-steps=7"}, {"`-s train.steps=7`"});
  expect_refused({"plan", "a.toml", "--tensor-parallel=2"}, {"`-s mesh.tp=2`"});
  expect_refused({"train", "a.toml", "--gradient-accumulation", "4"},
                 {"train.global_batch / (train.micro_batch x mesh.dp)"});
  expect_refused({"generate", "run", "--num-tokens", "4"}, {"no option --num-tokens", "that is --tokens"});
  const Outcome nothing = run({"train", "a.toml", "--zebra"});
  EXPECT_EQ(nothing.err.find("nearest"), std::string::npos) << nothing;
  EXPECT_EQ(nothing.err.find("config"), std::string::npos) << nothing;
}

TEST_F(CommandLine, KeysOfOtherPrograms) {
  expect_refused({"train", "a.toml", "-s", "train.num_train_epochs=3"},
                 {"train.steps counts steps", "an epoch is"});
  expect_refused({"plan", "a.toml", "-s", "model.hidden_dropout=0.1"}, {"dropout is not in this version"});
  expect_refused({"plan", "a.toml", "-s", "model.num_hidden_layers=2"}, {"the key is model.layers"});
  expect_refused({"plan", "a.toml", "-s", "mesh.pipeline_parallel_degree=2"}, {"the key is mesh.pp"});
  expect_refused({"plan", "a.toml", "-s", "train.weight_decay=0.1"}, {"the key is optimizer.weight_decay"});
}

TEST_F(CommandLine, HomeFoldersOnTheCommandLineAndInTheConfig) {
  fs::copy_file(path("text.txt"), path("home/text.txt"));
  fs::copy_file(path("a.toml"), path("home/a.toml"));
  succeed_at_home({"tokenize", "~/text.txt", "--tokenizer", "bytes", "--out=~/tokens"});
  EXPECT_TRUE(exists("home/tokens.bin"));
  succeed_at_home({"train", "~/a.toml", "-s", "data.train=~/tokens", "-s", "data.valid=~/text.txt", "-s",
                   "output.dir=~/runs/x", "-s", "train.steps=5"});
  EXPECT_TRUE(exists("home/runs/x/summary.json"));
  // What it stands for is kept: another user resumes the same run.
  const std::string home = path("home").string();
  expect_contains(read("home/runs/x/config.toml"),
                  {"train = \"" + home + "/tokens\"", "dir = \"" + home + "/runs/x\""});
  succeed({"train", home + "/runs/x", "--resume", "-s", "train.steps=6"});
  succeed_at_home({"eval", "~/runs/x"});
  succeed_at_home({"ckpt", "verify", "~/runs/x"});
  succeed_at_home({"ckpt", "export", "~/runs/x", "--out", "~/model"});
  EXPECT_TRUE(exists("home/model/config.json"));
  succeed_at_home(
      {"plan", "~/a.toml", "-s", "model.from=~/model", "-s", "model.preset=", "--trace=~/plan.json"});
  EXPECT_TRUE(exists("home/plan.json"));
  EXPECT_FALSE(exists("~"));
}

TEST_F(CommandLine, AFileThatIsCalledSoIsReachable) {
  fs::create_directories(path("~"));
  fs::copy_file(path("text.txt"), path("~/text.txt"));
  succeed({"tokenize", "./~/text.txt", "--tokenizer", "bytes", "--out", "./~tokens"});
  EXPECT_TRUE(exists("~tokens.bin"));
  expect_refused({"tokenize", "~no-such-user/text.txt", "--tokenizer", "bytes", "--out", "x"},
                 {"no home folder is known", "\"no-such-user\"", "./~no-such-user/text.txt"});
  write("b.toml", "[model]\npreset = \"gpt2-tiny\"\n[output]\ndir = \"~no-such-user/x\"\n");
  expect_refused({"plan", "b.toml"}, {"b.toml, line 4", "output.dir", "no home folder is known"});
}

TEST_F(CommandLine, NamesOfFilesAreNotFolders) {
  fs::create_directory(path("folder"));
  const Arguments tokenize = {"tokenize", "text.txt", "--tokenizer", "bytes", "--out"};
  expect_refused(tokenize + Arguments{"folder"}, {"--out folder names a folder", "`--out folder/corpus`"});
  expect_refused(tokenize + Arguments{"new/"}, {"--out new/ names a folder", "`--out new/corpus`"});
  expect_refused(tokenize + Arguments{"folder/.."}, {"names a folder"});
  expect_refused(tokenize + Arguments{""}, {"--out \"\"", "no name was given"});
  fs::create_directory(path("taken.idx"));
  expect_refused(tokenize + Arguments{"taken"}, {"taken.idx is a folder"});
  expect_refused({"tokenize", "text.txt", "--train-sentencepiece", "folder/", "--vocab", "300"},
                 {"--train-sentencepiece folder/ names a folder"});
  expect_refused({"tokenize", "text.txt", "--tokenizer", "sentencepiece:folder", "--train-sentencepiece",
                  "--vocab", "300"},
                 {"\"folder\" names a folder"});
  expect_refused({"plan", "a.toml", "--trace", "folder"},
                 {"--trace folder names a folder", "`--trace folder/"});
  expect_refused({"plan", "a.toml", "--trace", "nowhere/plan.json"}, {"nowhere/plan.json", "no such folder"});
  expect_refused({"bench", "matmul", "--json", "folder/"}, {"--json folder/ names a folder"});
  expect_refused({"ckpt", "import", MESHTRAIN_TEST_DATA "/huggingface/qwen3", "--out", "."},
                 {"--out .", "not empty"});
  EXPECT_TRUE(fs::is_empty(path("folder")));
}

TEST_F(CommandLine, ADigestIsOneLineUnlessAllIsAskedFor) {
  succeed({"train", "a.toml", "-s", "train.steps=5"});
  const std::string total = succeed({"ckpt", "digest", "run"}).out;
  const std::string all = succeed({"ckpt", "digest", "run", "--all"}).out;
  EXPECT_EQ(count(total, "\n"), 1);
  EXPECT_TRUE(all.ends_with("\n" + total)) << all;
  EXPECT_GT(count(all, "\n"), 50);
  const std::string summary = succeed({"ckpt", "inspect", "run"}).out;
  EXPECT_EQ(summary.find("embed.tokens"), std::string::npos) << summary;
  expect_contains(summary, {"part       tensors  files", "--all lists every tensor"});
  expect_contains(succeed({"ckpt", "inspect", "run", "--all"}).out, {"embed.tokens.v", "[64,256]"});
}

}  // namespace
}  // namespace meshtrain
