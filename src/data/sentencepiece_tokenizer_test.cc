#include "data/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/corpus.h"
#include "data/test_files.h"

namespace meshtrain {
namespace {

using Ids = std::vector<std::int32_t>;

std::string text() {
  return read_file(std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/text.txt");
}

std::string train(const std::string& corpus, SentencePieceTraining options) {
  const auto open_lines = [&]() -> LineSource {
    return [&corpus, at = std::size_t{0}](std::string& line) mutable {
      if (at >= corpus.size()) return false;
      const std::size_t feed = std::min(corpus.find('\n', at), corpus.size() - 1);
      line = corpus.substr(at, feed + 1 - at);
      at = feed + 1;
      return true;
    };
  };
  return train_sentencepiece(open_lines, options, "the test");
}

class TrainedSentencePiece : public testing::TestWithParam<const char*> {
 protected:
  TempFolder folder_;
  std::string model_ = folder_.write("m.model", train(text(), {.vocab = 700, .type = GetParam()}));
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("sentencepiece:" + model_);
};

TEST_P(TrainedSentencePiece, GivesTextBackByteForByte) {
  EXPECT_EQ(tokenizer_->vocab_size(), 700);
  for (const std::string& t :
       {text(), std::string("  two  spaces   three \n\n\n\ttab\r\n end  "), std::string("\n"), std::string(" "),
        std::string("rare \U0001F9FF \u1234 \u00a0 e\u0301"), std::string("")}) {
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(t)), t);
  }
  EXPECT_LT(tokenizer_->encode(text()).size(), text().size());
}

TEST_P(TrainedSentencePiece, EndOfDocumentIsTheModels) {
  const auto end = tokenizer_->require_end_of_document();
  EXPECT_EQ(make_tokenizer("sentencepiece:" + model_, "</s>")->end_of_document(), end);
  EXPECT_EQ(make_tokenizer("sentencepiece:" + model_, "<s>")->end_of_document(), 1);
  EXPECT_THROW(make_tokenizer("sentencepiece:" + model_, "<nope>"), UserError);
  EXPECT_EQ(tokenizer_->decode(Ids{end}), "");
  EXPECT_THROW(tokenizer_->decode(Ids{700}), RunError);
  EXPECT_THROW(tokenizer_->decode(Ids{-1}), RunError);
}

TEST_P(TrainedSentencePiece, IllFormedText) {
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode("a\xFF b\xE4\xB8")), "a\uFFFD b\uFFFD");
}

// A long text is encoded in parts; cutting it at a split point gives the same.
TEST_P(TrainedSentencePiece, SplitPointsAreSafe) {
  std::string long_text;
  while (long_text.size() < 2'500'000) long_text += text();
  const Ids whole = tokenizer_->encode(long_text);
  EXPECT_EQ(tokenizer_->split_point(text(), 1), text().size());
  for (const std::size_t from : {std::size_t{1}, std::size_t{1'500'000}}) {
    const std::size_t at = tokenizer_->split_point(long_text, from);
    ASSERT_GE(at, from);
    ASSERT_LT(at, long_text.size());
    Ids halves = tokenizer_->encode(long_text.substr(0, at));
    const Ids second = tokenizer_->encode(long_text.substr(at));
    halves.insert(halves.end(), second.begin(), second.end());
    EXPECT_TRUE(halves == whole);
  }
}

TEST_P(TrainedSentencePiece, TrainingIsRepeatable) {
  EXPECT_TRUE(read_file(model_) == train(text(), {.vocab = 700, .type = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(Types, TrainedSentencePiece, testing::Values("bpe", "unigram"));

TEST(SentencePiece, TrainingThatCannotWork) {
  expect_contains(message_of<UserError>([] { train("", {.vocab = 300}); }), "there is no text");
  expect_contains(message_of<UserError>([] { train("abc\n", {.vocab = 5000}); }), "vocabulary of 5000");
}

TEST(SentencePiece, LinesThatItsTrainerWouldSkip) {
  std::string corpus;
  for (int i = 0; i < 200; ++i) corpus += "\tindented word\u2585word\n";
  corpus += std::string(100'000, 'x') + "\n";
  const TempFolder folder;
  const auto tokenizer =
      make_tokenizer("sentencepiece:" + folder.write("m.model", train(corpus, {.vocab = 285})));
  EXPECT_LT(tokenizer->encode("indented").size(), 8U);
}

TEST(SentencePiece, FilesThatAreNoModel) {
  const TempFolder folder;
  expect_contains(message_of<UserError>([&] { load_sentencepiece(folder / "none.model"); }), "none.model");
  expect_contains(message_of<UserError>([&] { load_sentencepiece(folder.write("e.model", "")); }),
                  "it is empty");
  expect_contains(
      message_of<UserError>([&] { load_sentencepiece(folder.write("x.model", "no model at all")); }),
      "x.model");
}

}  // namespace
}  // namespace meshtrain
