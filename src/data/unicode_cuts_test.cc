// Every character, as the Hugging Face library cuts, normalizes and classifies it; unicode_cuts.json was made
// by tests/reference/unicode_cuts.py, which says what its numbers are.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/pretokenizer.h"
#include "data/test_files.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

constexpr char32_t kBlock = 4096;

const Json& record() {
  static const Json json =
      Json::parse(read_file(std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/unicode_cuts.json"));
  return json;
}

// zlib's CRC-32 (ISO 3309), of parts one after the other.
class Crc {
 public:
  void add(std::uint8_t byte) {
    value_ ^= byte;
    for (int bit = 0; bit < 8; ++bit) value_ = (value_ >> 1U) ^ ((value_ & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  void add(std::string_view text) {
    for (const char c : text) add(static_cast<std::uint8_t>(c));
  }
  std::uint32_t value() const { return ~value_; }

 private:
  std::uint32_t value_ = 0xFFFFFFFFU;
};

std::vector<char32_t> characters_of(std::size_t block) {
  std::vector<char32_t> characters;
  const auto begin = static_cast<char32_t>(block * kBlock);
  for (char32_t c = begin; c < begin + kBlock; ++c)
    if (c < 0xD800 || c > 0xDFFF) characters.push_back(c);
  return characters;
}

std::string in_context(std::size_t block, const std::string& context) {
  const std::size_t place = context.find("{}");
  std::string text;
  for (const char32_t c : characters_of(block)) {
    text += context.substr(0, place);
    append_utf8(c, text);
    text += context.substr(place + 2);
  }
  return text;
}

void add_pieces(Pretokenizer& pretokenizer, const std::string& text, Crc& crc) {
  pretokenizer.split(text, [&](std::string_view piece) {
    for (unsigned shift = 0; shift < 32; shift += 8) crc.add(static_cast<std::uint8_t>(piece.size() >> shift));
  });
}

class Cuts : public testing::TestWithParam<const char*> {};

TEST_P(Cuts, AreTheLibrarys) {
  const Json& entry = record()["patterns"][GetParam()];
  std::vector<PretokenizerStep> steps(1);
  steps[0].pattern =
      std::make_shared<Regex>(Regex::from_oniguruma(entry["regex"].get<std::string>(), GetParam()));
  Pretokenizer pretokenizer(steps);
  ASSERT_EQ(entry["blocks"].size(), 0x110000 / kBlock);
  for (std::size_t block = 0; block < entry["blocks"].size(); ++block) {
    Crc crc;
    for (const Json& context : record()["contexts"]) add_pieces(pretokenizer, in_context(block, context), crc);
    EXPECT_EQ(crc.value(), entry["blocks"][block]) << "characters from " << block * kBlock;
  }
  Crc crc;
  for (const Json& text : record()["texts"]) add_pieces(pretokenizer, text, crc);
  EXPECT_EQ(crc.value(), entry["texts"]);
}

INSTANTIATE_TEST_SUITE_P(Patterns, Cuts,
                         testing::Values("gpt2", "llama3", "qwen2", "o200k", "kimi", "deepseek", "deepseek-cjk",
                                         "bloom", "words", "hexadecimal", "case", "scripts", "categories"));

TEST(NormalForms, AreTheLibrarys) {
  const std::map<std::string, Normalization> forms = {{"NFC", Normalization::kNfc},
                                                      {"NFD", Normalization::kNfd},
                                                      {"NFKC", Normalization::kNfkc},
                                                      {"NFKD", Normalization::kNfkd}};
  for (const auto& [name, form] : forms) {
    const Json& blocks = record()["forms"][name];
    ASSERT_EQ(blocks.size(), 0x110000 / kBlock);
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      Crc crc;
      std::string storage;
      for (const Json& context : record()["form_contexts"])
        crc.add(normalize(in_context(block, context), form, storage));
      EXPECT_EQ(crc.value(), blocks[block]) << name << ", characters from " << block * kBlock;
    }
  }
}

TEST(CharacterClasses, AreTheLibrarys) {
  const std::map<std::string, bool (*)(char32_t)> classes = {
      {"number", &is_number}, {"word", &is_word}, {"space", &is_space}};
  for (const auto& [name, holds] : classes) {
    const Json& blocks = record()["classes"][name];
    ASSERT_EQ(blocks.size(), 0x110000 / kBlock);
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      Crc crc;
      for (const char32_t c : characters_of(block)) crc.add(static_cast<std::uint8_t>(holds(c) ? 1 : 0));
      EXPECT_EQ(crc.value(), blocks[block]) << name << ", characters from " << block * kBlock;
    }
  }
}

}  // namespace
}  // namespace meshtrain
