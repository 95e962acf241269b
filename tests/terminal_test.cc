// What a person sees in a terminal of 80 columns: nothing wider, and no word torn.
#include "terminal.h"

#include <gtest/gtest.h>

#include "base/text_wrap.h"

namespace meshtrain {
namespace {

class Terminal : public ProgramTest {
 protected:
  Terminal() { write_config("a.toml", "gpt2-tiny"); }

  Screen screen(const Arguments& arguments, int columns = 80) const {
    return run_in_terminal(dir_, arguments, columns);
  }
  // All of it, and that no line is wider.
  std::string fits(const Arguments& arguments, int status = 0) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Screen shown = screen(arguments);
    EXPECT_EQ(shown.status, status) << shown.text;
    std::istringstream lines(shown.text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), 80U) << shown.text;
    return shown.text;
  }
  // The same message in a file, where it is one line, with its spaces turned into line ends.
  void expect_wrapped(const Arguments& arguments, int columns) const {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const std::string plain = run(arguments).err;
    const std::string shown = screen(arguments, columns).text;
    EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), 1) << plain;
    EXPECT_GT(std::count(shown.begin(), shown.end(), '\n'), 1) << shown;
    std::string joined = shown;
    std::replace(joined.begin(), joined.end() - 1, '\n', ' ');
    EXPECT_EQ(joined, plain);
  }
};

const std::vector<Arguments> kCommands = {{},
                                          {"train"},
                                          {"eval"},
                                          {"generate"},
                                          {"tokenize"},
                                          {"plan"},
                                          {"verify"},
                                          {"bench"},
                                          {"bench", "comm"},
                                          {"bench", "matmul"},
                                          {"bench", "train"},
                                          {"bench", "checkpoint"},
                                          {"ckpt"},
                                          {"ckpt", "inspect"},
                                          {"ckpt", "digest"},
                                          {"ckpt", "verify"},
                                          {"ckpt", "import"},
                                          {"ckpt", "export"}};

TEST_F(Terminal, HelpFits) {
  for (const Arguments& command : kCommands) {
    const std::string help = fits(command + Arguments{"--help"});
    // In a file it is the same.
    EXPECT_EQ(run(command + Arguments{"--help"}).out, help);
  }
}

TEST_F(Terminal, HelpFitsIntoANarrowOne) {
  for (const Arguments& command : kCommands) {
    const std::string help = screen(command + Arguments{"--help"}, 60).text;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), 60U) << help;
  }
}

TEST_F(Terminal, MessagesAreWrappedAtWords) {
  for (const int columns : {30, 80}) {
    expect_wrapped({"train", "a.toml", "-s", "mesh.tp=3"}, columns);
    expect_wrapped({"plan", "a.toml", "-s", "optimizer.bogus_key_without_a_meaning=3"}, columns);
    expect_wrapped({"eval", "a_folder_that_is_not_there"}, columns);
    expect_wrapped({"trian"}, columns);
  }
}

TEST_F(Terminal, WhatIsToBeCopiedIsNotTorn) {
  const std::string text = screen({"train", "a.toml", "--learning-rate=0.00012345"}, 24).text;
  expect_contains(text, {"\n`-s optimizer.lr=0.00012345`", "\n`meshtrain train --help`\n"});
}

TEST_F(Terminal, TablesFit) {
  const Arguments large = {"plan", MESHTRAIN_SOURCE_DIR "/configs/llama-3.1-405b-16k.toml"};
  expect_contains(fits(large), {"tp  sums and gathers within layers", "layers.119 .. 125, head"});
  fits(large + Arguments{"--timeline"});
  fits({"plan", "a.toml", "--ranks", "2", "-s", "mesh.pp=2", "-s", "train.global_batch=64", "--timeline"});
  fits({"plan", "a.toml", "--checkpoint", "--write-gbps", "1", "-s", "checkpoint.every=auto"});
  fits({"verify", "a.toml", "--steps", "1", "--mesh", "dp=1", "--mesh",
        "dp=2 tp=2 zero=3 sequence_parallel=false mesh.overlap=false recompute.policy=full", "--tolerance",
        "0.1"});
  succeed({"train", "a.toml", "-s", "train.steps=5"});
  fits({"ckpt", "inspect", "run"});
  fits({"ckpt", "inspect", "run", "--all"});
  fits({"ckpt", "digest", "run"});
  fits({"ckpt", "verify", "run"});
  fits({"bench", "comm", "--max", "64K", "--factor", "8", "--iters", "1", "--ranks-as", "threads"});
  fits({"bench", "comm", "--engine", "sim", "--ranks", "16384", "--max", "1024G", "--factor", "1024"});
  fits({"bench", "matmul", "--m", "64", "--n", "64", "--k", "64", "--repeats", "1", "--threads", "1"});
  fits({"bench", "checkpoint", "--mb", "1", "--rounds", "1"});
}

TEST_F(Terminal, LongNamesBreakNoTable) {
  const std::string deep(30, 'd');
  const std::string folder = deep + "/" + deep + "/" + deep;
  fs::create_directories(path(folder));
  const Screen told = screen({"tokenize", "text.txt", "--tokenizer", "bytes", "--out", folder + "/tokens"});
  EXPECT_EQ(told.status, 0) << told.text;
  // A path that is wider than the terminal stays whole, on a line of its own.
  EXPECT_TRUE(told.text.starts_with(folder + "/tokens:\n1 document, ") ||
              told.text.find("\n" + folder) != std::string::npos)
      << told.text;
}

}  // namespace
}  // namespace meshtrain
