#include "data/text_stream.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data/byte_tokenizer.h"
#include "data/test_files.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

using Ids = std::vector<std::int32_t>;
using Strings = std::vector<std::string>;

// What add() returns for each token, and at the end what finish() does.
Strings stream(const Tokenizer& tokenizer, const Ids& before, const Ids& ids) {
  TextStream text(tokenizer, before);
  Strings parts;
  for (const std::int32_t id : ids) parts.push_back(text.add(id));
  parts.push_back(text.finish());
  return parts;
}

std::string joined(const Strings& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

Strings stream_bytes(const std::string& bytes) {
  return stream(ByteTokenizer(), {}, ByteTokenizer().encode(bytes));
}

std::string valid(const std::string& bytes) {
  std::string storage;
  return std::string(valid_utf8(bytes, storage));
}

TEST(TextStream, HoldsACharacterUntilItIsWhole) {
  EXPECT_EQ(stream_bytes("a\xC3\xA9z"), (Strings{"a", "", "\u00e9", "z", ""}));
  EXPECT_EQ(stream_bytes("\xF0\x9F\x98\x80"), (Strings{"", "", "", "\U0001F600", ""}));
  EXPECT_EQ(stream_bytes("\xE4\xB8"), (Strings{"", "", "\uFFFD"}));  // one maximal part
  EXPECT_EQ(stream_bytes("\xE4\xB8!"), (Strings{"", "", "\uFFFD!", ""}));
  EXPECT_EQ(stream_bytes("\xE4\xB8\xE4"), (Strings{"", "", "\uFFFD", "\uFFFD"}));
  // Nothing that follows makes these a character.
  EXPECT_EQ(stream_bytes("\xFF\x80\xC0"), (Strings{"\uFFFD", "\uFFFD", "\uFFFD", ""}));
  EXPECT_EQ(stream_bytes("\xED\xA0"), (Strings{"", "\uFFFD\uFFFD", ""}));
}

TEST(TextStream, AddsUpToTheWholeWhateverTheBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    const std::size_t size = random() % 12;
    for (std::size_t i = 0; i < size; ++i) {
      const char* const leads = "a\x80\x9F\xA0\xBF\xC2\xE0\xE4\xED\xF0\xF4\xF5";
      bytes.push_back(random() % 3 == 0 ? static_cast<char>(random()) : leads[random() % 12]);
    }
    EXPECT_EQ(joined(stream_bytes(bytes)), valid(bytes)) << testing::PrintToString(bytes);
  }
}

TEST(TextStream, SpecialTokensHaveNoText) {
  EXPECT_EQ(stream(ByteTokenizer(), {256}, {'a', 256, 0xC3, 256, 0xA9}),
            (Strings{"a", "", "", "", "\u00e9", ""}));
  const auto tokenizer = make_tokenizer(std::string(MESHTRAIN_TEST_DATA) + "/huggingface/chat/tokenizer.json");
  const Ids ids = tokenizer->encode("a<|turn|>b<tool>");
  EXPECT_EQ(tokenizer->decode(ids), "a<|turn|>b<tool>");
  EXPECT_EQ(joined(stream(*tokenizer, {}, ids)), "ab<tool>");
}

// A model that puts a space in front of a text, as Llama 2's does, and drops it on the way back.
class WithDummyPrefix : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Tokenizer> make(const TempFolder& folder) const {
    sentencepiece::SetRandomGeneratorSeed(1);
    const auto status = sentencepiece::SentencePieceTrainer::Train(std::unordered_map<std::string, std::string>{
        {"input", std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/text.txt"},
        {"model_prefix", folder / "m"},
        {"vocab_size", "700"},
        {"model_type", "bpe"},
        {"byte_fallback", "true"},
        {"character_coverage", "0.98"},
        {"remove_extra_whitespaces", GetParam() ? "true" : "false"},
        {"user_defined_symbols", "<tool>,\u2581"},
        {"minloglevel", "2"}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return make_tokenizer("sentencepiece:" + (folder / "m.model"));
  }
};

// In front of a word there is a space, unless the text begins with the word.
TEST_P(WithDummyPrefix, KeepsSpacesBetweenWords) {
  const TempFolder folder;
  const auto tokenizer = make(folder);
  const Ids ids = tokenizer->encode("the ship and the sea");
  EXPECT_EQ(joined(stream(*tokenizer, {}, ids)), "the ship and the sea");
  for (std::size_t cut = 1; cut < ids.size(); ++cut) {
    const Ids before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
    const Ids after(ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end());
    EXPECT_EQ(tokenizer->decode(before) + joined(stream(*tokenizer, before, after)), "the ship and the sea");
  }
}

TEST_P(WithDummyPrefix, BytesAreBytes) {
  const TempFolder folder;
  const auto tokenizer = make(folder);
  const Ids rare = tokenizer->encode("\U0001F9FF");
  ASSERT_GE(rare.size(), 4U);  // bytes
  const Ids bytes(rare.end() - 4, rare.end());
  EXPECT_EQ(tokenizer->decode(bytes), "\U0001F9FF");
  EXPECT_EQ(tokenizer->decode(std::span(bytes).first(3)), "\xF0\x9F\xA7");
  EXPECT_EQ(joined(stream(*tokenizer, {}, {bytes[0], bytes[1], bytes[2]})), "\uFFFD");
  EXPECT_EQ(stream(*tokenizer, {}, bytes), (Strings{"", "", "", "\U0001F9FF", ""}));
}

// Any ids: one at a time is all at once; and where their bytes are whole characters, as the library has it.
TEST_P(WithDummyPrefix, AnyTokensAddUp) {
  const TempFolder folder;
  const auto tokenizer = make(folder);
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(folder / "m.model").ok());
  std::mt19937 random(5);
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    Ids ids;
    const std::size_t size = 1 + random() % 6;
    for (std::size_t i = 0; i < size; ++i)
      ids.push_back(static_cast<std::int32_t>(random() % 4 == 0 ? random() % 8 : random() % 700));
    Ids shown;
    for (const std::int32_t id : ids)
      if (!tokenizer->is_special(id)) shown.push_back(id);
    const std::string text = tokenizer->decode(shown);
    EXPECT_EQ(joined(stream(*tokenizer, {}, ids)), valid(text)) << testing::PrintToString(ids);
    if (valid(text) != text) continue;
    ++compared;
    std::string expected;
    ASSERT_TRUE(library.Decode(std::vector<int>(shown.begin(), shown.end()), &expected).ok());
    EXPECT_EQ(text, expected) << testing::PrintToString(ids);
  }
  EXPECT_GT(compared, 500);
}

INSTANTIATE_TEST_SUITE_P(ExtraSpaces, WithDummyPrefix, testing::Bool());

}  // namespace
}  // namespace meshtrain
