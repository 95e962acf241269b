#include "base/text_wrap.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace meshtrain {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(TextWrap, ColumnsAreThoseOfTheTerminal) {
  EXPECT_EQ(columns_of(""), 0U);
  EXPECT_EQ(columns_of("plain"), 5U);
  EXPECT_EQ(columns_of("größe · …"), 9U);
  EXPECT_EQ(columns_of("日本語"), 6U);
  EXPECT_EQ(columns_of("한국"), 4U);
  EXPECT_EQ(columns_of("ｆｕｌｌ"), 8U);
  EXPECT_EQ(columns_of("e\u0301"), 1U);  // a combining accent
  EXPECT_EQ(columns_of("🦜"), 2U);
  EXPECT_EQ(columns_of("\xff\xc3"), 2U);  // not UTF-8
}

TEST(TextWrap, BreaksBetweenWordsAsLateAsPossible) {
  EXPECT_EQ(wrap("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrap("one two three", 80), "one two three");
  EXPECT_EQ(wrap("", 5), "");
  EXPECT_EQ(wrap("aa bb cc", 1), "aa\nbb\ncc");
  EXPECT_EQ(wrap("two  spaces  stay", 11), "two  spaces\nstay");
  EXPECT_EQ(wrap("日本 日本 日本", 9), "日本 日本\n日本");
}

TEST(TextWrap, LinesStayApartAndKeepTheirIndent) {
  EXPECT_EQ(wrap("a b\n  one two three\n", 8), "a b\n  one\n  two\n  three\n");
  EXPECT_EQ(wrap("\n\nx", 8), "\n\nx");
}

TEST(TextWrap, WhatIsToBeCopiedStaysWhole) {
  EXPECT_EQ(wrap("resume with `meshtrain train runs/a --resume`.", 36),
            "resume with\n`meshtrain train runs/a --resume`.");
  // Wider than a line: on one of its own.
  EXPECT_EQ(wrap("now `a b c d e f` follows", 6), "now\n`a b c d e f`\nfollows");
  EXPECT_EQ(wrap("the folder \"my own runs\" is not there", 20), "the folder\n\"my own runs\" is not\nthere");
  EXPECT_EQ(wrap("the --mesh \"dp=2 zero=1\": wrong", 22), "the\n--mesh \"dp=2 zero=1\":\nwrong");
  EXPECT_EQ(wrap("Start 2 ranks (--ranks 2), or set", 23), "Start 2 ranks\n(--ranks 2), or set");
  EXPECT_EQ(wrap("layers.3 .. 6 to layers.27 .. 30", 20), "layers.3 .. 6 to\nlayers.27 .. 30");
  EXPECT_EQ(wrap("or --out PREFIX for all", 14), "or\n--out PREFIX\nfor all");
  EXPECT_EQ(wrap("with --resume it is", 14), "with --resume\nit is");
  EXPECT_EQ(wrap("with model.heads = 5 heads", 18), "with\nmodel.heads = 5\nheads");
  EXPECT_EQ(wrap("pass -s optimizer.lr=1e-3 to it", 8), "pass\n-s optimizer.lr=1e-3\nto it");
  EXPECT_EQ(wrap("in /a/very/long/path/that/has/no/end, as said", 10),
            "in\n/a/very/long/path/that/has/no/end,\nas said");
  EXPECT_EQ(wrap(R"(found "a \" b c" here)", 12), "found\n\"a \\\" b c\"\nhere");
}

TEST(TextWrap, ALoneQuoteIsACharacter) {
  EXPECT_EQ(wrap("a ` b c", 3), "a `\nb c");
  EXPECT_EQ(wrap("a \" b c", 3), "a \"\nb c");
  EXPECT_EQ(wrap("a = ", 3), "a =");
  EXPECT_EQ(wrap("= b", 1), "= b");
}

// Whatever the width, no word is torn or lost, and a line is wider only where it is one unit.
TEST(TextWrap, EveryWidth) {
  const std::string text =
      "small.toml, line 9: model.heads = 5 does not divide model.hidden = 64; set it to 4 or 8, or run "
      "`meshtrain plan small.toml -s model.heads=4` for \"what it costs\". Größe 日本語 is no problem.";
  for (std::size_t columns = 1; columns < 200; ++columns) {
    const std::string wrapped = wrap(text, columns);
    std::string joined = wrapped;
    for (char& c : joined) c = c == '\n' ? ' ' : c;
    EXPECT_EQ(joined, text) << columns;
    EXPECT_NE(wrapped.find("`meshtrain plan small.toml -s model.heads=4`"), std::string::npos) << columns;
    EXPECT_NE(wrapped.find("model.hidden = 64;"), std::string::npos) << columns;
    for (const std::string& line : lines_of(wrapped)) {
      const bool unit = line.find(' ') == std::string::npos || line.starts_with('`') || line.starts_with('"') ||
                        line.starts_with("model.h");
      EXPECT_TRUE(columns_of(line) <= columns || unit) << columns << ": " << line;
    }
  }
}

}  // namespace
}  // namespace meshtrain
