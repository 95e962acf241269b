#include "data/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/test_files.h"

namespace meshtrain {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex = Regex::from_oniguruma(pattern, "test");
  RegexMatcher matcher(regex);
  std::vector<std::string> found;
  TextRange match;
  for (std::size_t at = 0; at < text.size() && matcher.find(text, at, match); at = match.end) {
    found.push_back(text.substr(match.begin, match.size()));
    if (match.size() == 0) break;
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, SpaceIsUnicodeWhiteSpace) {
  EXPECT_EQ(matches("\\s+", "a \t\u00a0\u2003\u3000\u0085\u2028b"),
            Strings{" \t\u00a0\u2003\u3000\u0085\u2028"});
  // U+180E is white space to PCRE2 alone.
  EXPECT_EQ(matches("\\s", "\u180e\u200b"), Strings{});
  EXPECT_EQ(matches("\\S+", " \u180e \u00a0"), Strings{"\u180e"});
  EXPECT_EQ(matches("[^\\s\\p{L}]+", "ab\u180e cd"), Strings{"\u180e"});
}

TEST(Regex, WhatTokenizersUse) {
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a   b"), (Strings{"  ", " "}));
  EXPECT_EQ(matches("(?i:'s|'ll)", "'S 'lL 's x"), (Strings{"'S", "'lL", "'s"}));
  EXPECT_EQ(matches("\\p{N}{1,3}", "1234\u0664\u00bd"), (Strings{"123", "4\u0664\u00bd"}));
  EXPECT_EQ(matches("[\u4e00-\u9fa5]+", "ab\u4e2d\u6587c"), Strings{"\u4e2d\u6587"});
  EXPECT_EQ(matches("\\p{Han}+", "\u3001\u4e2d"), Strings{"\u4e2d"});
  EXPECT_EQ(matches("\\x41\\u4e2d\\x{1F600}", "A\u4e2d\U0001F600"), Strings{"A\u4e2d\U0001F600"});
  EXPECT_EQ(matches("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", "\nab (cd"), (Strings{"ab", "(cd"}));
  EXPECT_EQ(matches("\\p{^L}", "a1"), Strings{"1"});
  EXPECT_EQ(matches("\\v", "\n\x0b"), Strings{"\x0b"});
}

TEST(Regex, RefusesWhatItDoesNotKnowToBeEqual) {
  for (const char* pattern :
       {"\\w+",  "\\bx",       "^a",          "a$",           "[a[bc]]", "[a&&b]", "\\p{N}{1,3}+",
        "a{2}?", "(?<name>a)", "(?m)a",       "(?i)a",        "\\h",     "\\R",    "\\X",
        "\\K",   "(a)\\1",     "\\p{Alnum1}", "(?i:\\p{Lu})", "[\\S]",   "a{,3}",  "\\x80",
        "[a",    "[]a]",       "\\",          "a(",           "\\p{L",   "\\pL",   "(?#c)"}) {
    expect_contains(message_of<UserError>([&] { Regex::from_oniguruma(pattern, "file F: field G"); }),
                    "file F: field G: the regular expression");
  }
  EXPECT_THROW(Regex::from_oniguruma("\\p{Nonsense}", "test"), UserError);
  EXPECT_THROW(Regex::from_oniguruma(std::string(300, '(') + std::string(300, ')'), "test"), UserError);
}

TEST(Regex, LiteralTextHasNoSyntax) {
  const Regex regex = Regex::literal("a.b(", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  ASSERT_TRUE(matcher.find("axb( a.b(", 0, match));
  EXPECT_EQ(match, (TextRange{5, 9}));
}

TEST(Regex, TooMuchBacktrackingIsAnError) {
  const Regex regex = Regex::from_oniguruma("(?:a+)+[bc]", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  EXPECT_THROW(matcher.find(std::string(60, 'a'), 0, match), RunError);
}

TEST(Regex, LongRunsNeedNoStack) {
  const std::string text(5'000'000, ' ');
  const Regex regex = Regex::from_oniguruma("\\s+(?!\\S)|\\s+", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  ASSERT_TRUE(matcher.find(text + "x", 0, match));
  EXPECT_EQ(match.end, text.size() - 1);
}

}  // namespace
}  // namespace meshtrain
