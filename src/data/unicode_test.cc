#include "data/unicode.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

std::string valid(std::string_view text) {
  std::string storage;
  return std::string(valid_utf8(text, storage));
}

std::string normal(std::string_view text, Normalization form = Normalization::kNfc) {
  std::string storage;
  return std::string(normalize(text, form, storage));
}

TEST(ValidUtf8, LeavesWellFormedTextWhereItIs) {
  const std::string_view text = "plain ASCII, \u00e9, \u4e2d, \U0001F600, \U0010FFFF";
  std::string storage;
  EXPECT_EQ(valid_utf8(text, storage).data(), text.data());
}

// The Unicode standard, section 3.9, tables 3-8 to 3-11; Rust's from_utf8_lossy does the same.
TEST(ValidUtf8, ReplacesEachMaximalPart) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(valid("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(valid("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(valid("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(valid("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(valid("Hello \xF0\x90\x80World"), "Hello " + r + "World");
  EXPECT_EQ(valid("cut \xE4\xB8"), "cut " + r);
}

TEST(WellFormedUntil, TheFirstThingThatIsWrong) {
  EXPECT_EQ(well_formed_until(""), 0U);
  EXPECT_EQ(well_formed_until("caf\u00e9 \U0001F600"), 10U);
  EXPECT_EQ(well_formed_until("caf\xE9"), 3U);
  EXPECT_EQ(well_formed_until("long enough for words \xC3\xA9 \x80 more"), 25U);
}

TEST(UnfinishedBytes, OnlyWhatMayBecomeACharacter) {
  EXPECT_EQ(unfinished_bytes(""), 0U);
  EXPECT_EQ(unfinished_bytes("abc"), 0U);
  EXPECT_EQ(unfinished_bytes("\u00e9"), 0U);
  EXPECT_EQ(unfinished_bytes("a\xC3"), 1U);
  EXPECT_EQ(unfinished_bytes("a\xE4\xB8"), 2U);
  EXPECT_EQ(unfinished_bytes("\xF0\x9F\x98"), 3U);
  for (const char* text :
       {"\x80", "\xFF", "\xC0", "\xF5", "\xE0\x80", "\xED\xA0", "\xF4\x90", "\xE4\xB8\x80\x80"})
    EXPECT_EQ(unfinished_bytes(text), 0U) << testing::PrintToString(text);
}

TEST(CodePoints, ForthAndBack) {
  for (const char32_t c : {U'a', U'\u00e9', U'\u4e2d', U'\U0001F600', U'\U0010FFFF'}) {
    std::string text = "x";
    append_utf8(c, text);
    EXPECT_EQ(code_point_at(text, 1).value, c);
    EXPECT_EQ(code_point_before(text, text.size()).value, c);
    EXPECT_EQ(code_point_at(text, 1).length, text.size() - 1);
  }
}

TEST(CharacterClasses, OfUnicode) {
  for (const char32_t c : {U'\t', U'\v', U'\r', U' ', U'\u0085', U'\u00a0', U'\u1680', U'\u2028', U'\u3000'}) {
    EXPECT_TRUE(is_space(c)) << static_cast<std::uint32_t>(c);
  }
  // The Mongolian vowel separator and the zero-width space are no White_Space; nor is U+001C.
  for (const char32_t c : {U'\u180e', U'\u200b', U'\u001c', U'a'}) EXPECT_FALSE(is_space(c));
  for (const char32_t c : {U'7', U'\u00bd', U'\u0664', U'\u2167', U'\u3289'}) EXPECT_TRUE(is_number(c));
  for (const char32_t c : {U'x', U'\u4e00'}) EXPECT_FALSE(is_number(c));
  for (const char32_t c : {U'x', U'_', U'\u0301', U'\u4e00', U'\u2167', U'\u200d', U'\u24b6'})
    EXPECT_TRUE(is_word(c));
  for (const char32_t c : {U'-', U'\u00bd', U'\u2019', U' '}) EXPECT_FALSE(is_word(c));
}

// Cases of the Unicode standard annex 15, figures 3 to 6.
TEST(Normalize, PublishedCases) {
  EXPECT_EQ(normal("e\u0301"), "\u00e9");
  EXPECT_EQ(normal("\u212b"), "\u00c5");
  EXPECT_EQ(normal("\u1e9b\u0323"), "\u1e9b\u0323");
  EXPECT_EQ(normal("\u1e9b\u0323", Normalization::kNfd), "\u017f\u0323\u0307");
  EXPECT_EQ(normal("\u1e9b\u0323", Normalization::kNfkc), "\u1e69");
  EXPECT_EQ(normal("\u1e9b\u0323", Normalization::kNfkd), "s\u0323\u0307");
  EXPECT_EQ(normal("\ufb01"), "\ufb01");
  EXPECT_EQ(normal("\ufb01", Normalization::kNfkc), "fi");
  EXPECT_EQ(normal("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(normal("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(normal("\u304b\u3099"), "\u304c");
  EXPECT_EQ(normal(std::string_view("a\0e\u0301", 5)), std::string("a\0\u00e9", 4));
}

TEST(Normalize, TextBetweenChangesStays) {
  EXPECT_EQ(normal("caf\u00e9 e\u0301 \u4e2d\u6587 A\u030a! \u0958 end"),
            "caf\u00e9 \u00e9 \u4e2d\u6587 \u00c5! \u0915\u093c end");
  const std::string_view stable = "caf\u00e9 \u4e2d\u6587 \u3042 \ud55c \u0431 \U0001F600";
  std::string storage;
  EXPECT_EQ(normalize(stable, Normalization::kNfc, storage).data(), stable.data());
}

}  // namespace
}  // namespace meshtrain
