#include "data/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/test_files.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

// tests/reference/make_tokenizers.py made these with the Hugging Face library.
std::string data_file(const std::string& name) {
  return std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/" + name;
}

class HfReference : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer(data_file(GetParam() + std::string(".json")));
  Json record_ = Json::parse(read_file(data_file(GetParam() + std::string("_ids.json"))));
  std::string text_ = read_file(data_file("text.txt"));
};

TEST_P(HfReference, TheText) {
  EXPECT_EQ(tokenizer_->vocab_size(), record_["vocab_size"]);
  EXPECT_EQ(tokenizer_->encode(text_), record_["text"].get<Ids>());
}

TEST_P(HfReference, EachCase) {
  const auto encoder = tokenizer_->encoder();
  for (const Json& entry : record_["cases"]) {
    Ids ids;
    encoder->encode(entry[0].get<std::string>(), ids);
    EXPECT_EQ(ids, entry[1].get<Ids>()) << entry[0];
  }
}

// Not "flags": its normalizers and prefix spaces change the text.
TEST(HfTokenizer, DecodeGivesTheTextBack) {
  const std::string text = read_file(data_file("text.txt"));
  for (const char* name : {"gpt2", "llama3", "qwen2", "smollm"}) {
    const auto tokenizer = make_tokenizer(data_file(name + std::string(".json")));
    std::string storage;
    const std::string_view expected =
        name == std::string("qwen2") ? normalize(text, Normalization::kNfc, storage) : std::string_view(text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), expected) << name;
  }
}

// Random texts out of what pre-tokenizers treat specially; every cut they allow must be safe.
TEST_P(HfReference, SplitPointsAreSafe) {
  const std::vector<std::string> parts = {"a",
                                          "Z",
                                          "the",
                                          " ",
                                          "  ",
                                          "\n",
                                          "\r\n",
                                          "\r",
                                          "\t",
                                          "'s",
                                          "'",
                                          "1",
                                          "23",
                                          "\u00e9",
                                          "\u4e2d",
                                          "\u0301",
                                          "\u00a0",
                                          "!",
                                          ".",
                                          "\xE4",
                                          "\xB8",
                                          "<|endoftext|>",
                                          "<|im_start|>",
                                          "\u0664",
                                          "\u200d"};
  std::mt19937 random(7);
  const auto encoder = tokenizer_->encoder();
  int cuts = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const auto length = 1 + random() % 30;
    for (std::size_t i = 0; i < length; ++i) text += parts[random() % parts.size()];
    Ids whole;
    encoder->encode(text, whole);
    for (std::size_t from = 1; from < text.size(); ++from) {
      const std::size_t at = tokenizer_->split_point(text, from);
      ASSERT_GE(at, from);
      ASSERT_LE(at, text.size());
      if (at == text.size()) break;
      Ids halves;
      encoder->encode(std::string_view(text).substr(0, at), halves);
      encoder->encode(std::string_view(text).substr(at), halves);
      ASSERT_EQ(halves, whole) << Json(text).dump(-1, ' ', true, Json::error_handler_t::replace) << " cut at "
                               << at;
      from = at;
      ++cuts;
    }
  }
  if (GetParam() == std::string("flags")) {
    EXPECT_EQ(cuts, 0);
  } else {
    EXPECT_GT(cuts, 2000);
  }
}

INSTANTIATE_TEST_SUITE_P(Published, HfReference, testing::Values("gpt2", "llama3", "qwen2", "smollm", "flags"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(HfTokenizer, EndOfDocument) {
  EXPECT_EQ(make_tokenizer(data_file("gpt2.json"))->end_of_document(), 1349);
  const auto llama = make_tokenizer(data_file("llama3.json"));
  EXPECT_EQ(llama->decode(Ids{*llama->end_of_document()}), "<|end_of_text|>");
  const auto chosen = make_tokenizer(data_file("qwen2.json"), "<|im_end|>");
  EXPECT_EQ(chosen->decode(Ids{*chosen->end_of_document()}), "<|im_end|>");
  const auto none = make_tokenizer(data_file("flags.json"));
  EXPECT_EQ(none->end_of_document(), std::nullopt);
  expect_contains(message_of<UserError>([&] { none->require_end_of_document(); }), "--eod TOKEN");
  expect_contains(message_of<UserError>([&] { make_tokenizer(data_file("gpt2.json"), "<nope>"); }),
                  "\"<nope>\"");
}

TEST(HfTokenizer, IllFormedTextIsReplacedNotRefused) {
  const auto tokenizer = make_tokenizer(data_file("gpt2.json"));
  EXPECT_EQ(tokenizer->encode("a\xE4\xB8 b\xFF"), tokenizer->encode("a\uFFFD b\uFFFD"));
}

TEST(HfTokenizer, DecodeRefusesForeignIds) {
  const auto tokenizer = make_tokenizer(data_file("gpt2.json"));
  EXPECT_THROW(tokenizer->decode(Ids{-1}), RunError);
  expect_contains(message_of<RunError>([&] { tokenizer->decode(Ids{1350}); }), "ids 0 to 1349");
}

TEST(HfTokenizer, FolderOfAModel) {
  const TempFolder folder;
  folder.write("tokenizer.json", read_file(data_file("gpt2.json")));
  EXPECT_EQ(make_tokenizer("hf:" + folder / "")->vocab_size(), 1350);
  EXPECT_EQ(make_tokenizer(folder / ".")->vocab_size(), 1350);
}

TEST(ByteLevel, AlphabetOfGpt2) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(byte_level_to_bytes(bytes_to_byte_level(all)), all);
  EXPECT_EQ(bytes_to_byte_level(" hi\n"), "\u0120hi\u010a");
  EXPECT_EQ(byte_level_to_bytes("a b"), std::nullopt);
}

// A file with one thing changed, and what the error must name.
struct Change {
  const char* pointer;  // JSON pointer; its parent exists
  const char* value;    // JSON; "remove" takes the field away
  const char* names;
};

class BadFile : public testing::TestWithParam<Change> {};

TEST_P(BadFile, IsRefusedByName) {
  Json file = Json::parse(read_file(data_file("smollm.json")));
  const Json::json_pointer pointer(GetParam().pointer);
  if (GetParam().value == std::string("remove")) {
    file[pointer.parent_pointer()].erase(pointer.back());
  } else {
    file[pointer] = Json::parse(GetParam().value);
  }
  const std::string message = message_of<UserError>([&] { parse_hf_tokenizer(file.dump(), "F.json"); });
  expect_contains(message, "F.json");
  expect_contains(message, GetParam().names);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadFile,
    testing::Values(
        Change{"/truncation", R"({"max_length":512})", "truncation is {\"max_length\":512}"},
        Change{"/padding", "{}", "padding"}, Change{"/novelty", "1", "novelty is 1"},
        Change{"/normalizer", R"({"type":"Lowercase"})", "normalizer is {\"type\":\"Lowercase\"}"},
        Change{"/normalizer", R"({"type":"Sequence","normalizers":[{"type":"Replace"}]})",
               "normalizer.normalizers[0]"},
        Change{"/normalizer", "7", "normalizer"}, Change{"/pre_tokenizer", "null", "pre_tokenizer is null"},
        Change{"/pre_tokenizer/type", "\"Whitespace\"", "pre_tokenizer"},
        Change{"/pre_tokenizer/pretokenizers/0", R"({"type":"Metaspace"})", "pre_tokenizer.pretokenizers[0]"},
        Change{"/pre_tokenizer/pretokenizers/2", R"({"type":"Digits"})", "nothing may follow ByteLevel"},
        Change{"/pre_tokenizer/pretokenizers/1/use_regex", "1", "use_regex is 1"},
        Change{"/pre_tokenizer/pretokenizers/1/other", "1", "pre_tokenizer.pretokenizers[1].other"},
        Change{"/pre_tokenizer/pretokenizers/0",
               R"({"type":"Split","pattern":{"Regex":"\\b"},"behavior":"Isolated","invert":false})", "\\b"},
        Change{"/pre_tokenizer/pretokenizers/0",
               R"({"type":"Split","pattern":{"Regex":"x"},"behavior":"Odd","invert":false})",
               "behavior is \"Odd\""},
        Change{"/pre_tokenizer/pretokenizers/0", R"({"type":"Split","behavior":"Isolated","invert":false})",
               "pattern"},
        Change{"/post_processor", R"({"type":"Magic"})", "post_processor"},
        Change{"/decoder", R"({"type":"WordPiece"})", "decoder"}, Change{"/model", "remove", "model"},
        Change{"/model", "[]", "model is []"},
        Change{"/model/type", "\"Unigram\"", "model.type is \"Unigram\""},
        Change{"/model/dropout", "0.1", "model.dropout is 0.1"},
        Change{"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix is \"##\""},
        Change{"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
        Change{"/model/unk_token", "\"<nope>\"", "model.unk_token is \"<nope>\""},
        Change{"/model/vocab", "remove", "model.vocab"}, Change{"/model/vocab", "{}", "model.vocab"},
        Change{"/model/vocab/a", "-1", "model.vocab.a is -1"}, Change{"/model/vocab/a", "1.5", "model.vocab.a"},
        Change{"/model/vocab/a", "4000000000", "model.vocab.a is 4000000000"},
        Change{"/model/vocab/a", "5", "id 5 is taken"},
        Change{"/model/vocab/a", "remove", "\"a\" is not in model.vocab"},
        Change{"/model/merges", "remove", "model.merges"},
        Change{"/model/merges/0", "\"a b c\"", "model.merges[0]"},
        Change{"/model/merges/0", "\"ab\"", "model.merges[0]"},
        Change{"/model/merges/0", R"(["a"])", "model.merges[0]"},
        Change{"/model/merges/0", R"(["\u0002","a"])", "model.merges[0]"},
        Change{"/model/merges/0", "3", "model.merges[0] is 3"},
        Change{"/added_tokens/0/id", "\"0\"", "added_tokens[0].id"},
        Change{"/added_tokens/0/id", "99", "added_tokens[0].id is 99"},
        Change{"/added_tokens/0/content", "1", "added_tokens[0].content"},
        Change{"/added_tokens/0/lstrip", "\"yes\"", "added_tokens[0].lstrip"},
        Change{"/added_tokens/1/content", "\"<|endoftext|>\"", "added_tokens[1].content"},
        Change{"/added_tokens/0/content", "\"new\"", "id 0 is taken"},
        Change{"/added_tokens", "{}", "added_tokens is {}"}));

TEST(HfTokenizer, BrokenFiles) {
  const std::string good = read_file(data_file("gpt2.json"));
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, good.size() / 2, good.size() - 1}) {
    expect_contains(message_of<UserError>([&] { parse_hf_tokenizer(good.substr(0, length), "F.json"); }),
                    "F.json");
  }
  EXPECT_THROW(parse_hf_tokenizer("[1e999]", "F.json"), UserError);
  EXPECT_THROW(parse_hf_tokenizer("{\"model\":\"\xFF\"}", "F.json"), UserError);
  expect_contains(message_of<UserError>([] { make_tokenizer("hf:/no/such/file.json"); }), "/no/such/file.json");
}

TEST(MakeTokenizer, NamesWhatItKnows) {
  expect_contains(message_of<UserError>([] { make_tokenizer("tiktoken"); }),
                  "\"bytes\", \"sentencepiece:FILE\"");
  expect_contains(message_of<UserError>([] { make_tokenizer("a/b.model"); }),
                  "did you mean \"sentencepiece:a/b.model\"");
  EXPECT_THROW(make_tokenizer("bytes", "</s>"), UserError);
  EXPECT_EQ(make_tokenizer("bytes")->name(), "bytes");
}

TEST(ByteTokenizer, EveryByte) {
  const auto tokenizer = make_tokenizer("bytes");
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  Ids ids = tokenizer->encode(all);
  ASSERT_EQ(ids.size(), 256U);
  EXPECT_EQ(ids[255], 255);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->require_end_of_document(), 256);
  ids.push_back(256);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_THROW(tokenizer->decode(Ids{257}), RunError);
}

}  // namespace
}  // namespace meshtrain
