#include "cli/commands.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/indexed_dataset.h"
#include "data/test_files.h"

namespace meshtrain::cli {
namespace {

// Runs `tokenize` with the arguments and returns what it printed.
std::string run(std::vector<std::string> arguments) {
  CLI::App app;
  add_tokenize(app);
  arguments.insert(arguments.begin(), "tokenize");
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants a vector
  testing::internal::CaptureStdout();
  try {
    app.parse(arguments);
  } catch (...) {
    (void)testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

TEST(TokenizeCommand, SummaryAndFiles) {
  const TempFolder folder;
  const std::string input = folder.write("a.txt", "hello");
  const std::string out = run({input, "--out", folder / "p", "--tokenizer", "bytes", "--threads", "2"});
  expect_contains(out, "1 document, 6 tokens, 0.833 bytes/token, vocabulary 257, uint16");
  EXPECT_EQ(IndexedDataset::open(folder / "p").size(), 6);
}

TEST(TokenizeCommand, TrainsAndUsesSentencePiece) {
  const TempFolder folder;
  const std::string input = std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/text.txt";
  const std::string out =
      run({input, "--out", folder / "p", "--train-sentencepiece", folder / "m", "--vocab", "600"});
  expect_contains(out, "vocabulary 600");
  const auto tokenizer = make_tokenizer("sentencepiece:" + folder / "m.model");
  const IndexedDataset data = IndexedDataset::open(folder / "p");
  EXPECT_EQ(tokenizer->decode(data.sequence(0)), read_file(input));
}

TEST(TokenizeCommand, Eod) {
  const TempFolder folder;
  const std::string json = std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/flags.json";
  const std::string input = folder.write("a.txt", "x");
  EXPECT_THROW(run({input, "--out", folder / "p", "--tokenizer", json}), UserError);
  run({input, "--out", folder / "p", "--tokenizer", json, "--eod", "<mask>"});
  EXPECT_EQ(make_tokenizer(json)->decode(std::vector{IndexedDataset::open(folder / "p").sequence(0).back()}),
            "<mask>");
}

TEST(TokenizeCommand, ArgumentsThatContradict) {
  const TempFolder folder;
  const std::string input = folder.write("a.txt", "x");
  const auto refusal = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), input);
    return message_of<UserError>([&] { run(arguments); });
  };
  expect_contains(refusal({"--tokenizer", "bytes"}), "--out PREFIX");
  expect_contains(refusal({"--out", "p"}), "--tokenizer bytes");
  expect_contains(refusal({"--out", "p.bin", "--tokenizer", "bytes"}), "--out p for");
  expect_contains(
      refusal({"--out", "p", "--tokenizer", "bytes", "--train-sentencepiece", "m", "--vocab", "300"}),
      "is not the model");
  expect_contains(refusal({"--out", "p", "--train-sentencepiece", "m"}), "--vocab N");
  expect_contains(refusal({"--out", "p", "--tokenizer", "bytes", "--vocab", "500"}), "go together");
  expect_contains(refusal({"--out", "p", "--train-sentencepiece", "m", "--vocab", "100"}), "at least 260");
  EXPECT_THROW(run({"--out", "p"}), CLI::ParseError);
  EXPECT_THROW(run({input, "--threads", "0"}), CLI::ParseError);
}

}  // namespace
}  // namespace meshtrain::cli
