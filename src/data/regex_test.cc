#include "data/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/test_files.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex = Regex::from_oniguruma(pattern, "test");
  RegexMatcher matcher(regex);
  std::vector<std::string> found;
  TextRange match;
  matcher.begin(text);
  for (std::size_t at = 0; at < text.size() && matcher.find(at, match); at = match.end) {
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
  for (const char* pattern : {"\\bx",
                              "^a",
                              "a$",
                              "\\p{N}{1,3}+",
                              "a{2}?",
                              "(?<name>a)",
                              "(?m)a",
                              "(?i)a",
                              "\\R",
                              "\\X",
                              "\\K",
                              "(a)\\1",
                              "\\p{Alnum1}",
                              "(?i:\\p{Lu})",
                              "a{,3}",
                              "\\x80",
                              "[a",
                              "[]a]",
                              "\\",
                              "a(",
                              "\\p{L",
                              "\\pL",
                              "(?#c)",
                              "(*UCP)a",
                              "[[:alpha:]]",
                              "[a-c-e]",
                              "[a-\\d]",
                              "[\\d-a]",
                              "[z-a]",
                              "[a-[b]]",
                              "[a&&]",
                              "[&&a]",
                              "(?i:ss)",
                              "(?i:'St)",
                              "(?i:s(?:s))",
                              "(?i:\u00df)",
                              "(?i:[\u00df])",
                              "(?i:[a&&b])",
                              "(?i:[[a]b])",
                              "\\u{41}",
                              "\\x{110000}",
                              "\\x{D800}"}) {
    expect_contains(message_of<UserError>([&] { Regex::from_oniguruma(pattern, "file F: field G"); }),
                    "file F: field G: the regular expression");
  }
  EXPECT_THROW(Regex::from_oniguruma("\\p{Nonsense}", "test"), UserError);
  EXPECT_THROW(Regex::from_oniguruma(std::string(300, '(') + std::string(300, ')'), "test"), UserError);
}

TEST(Regex, ClassesAreSets) {
  EXPECT_EQ(matches("[a-z&&[^aeiou]]+", "audio box"), (Strings{"d", "b", "x"}));
  EXPECT_EQ(matches("[^a-z&&[^aeiou]]+", "audio box"), (Strings{"au", "io ", "o"}));
  EXPECT_EQ(matches("[a[0-9]c]+", "ab1c2"), (Strings{"a", "1c2"}));
  EXPECT_EQ(matches("[^\\S\\n]+", "a \t\n\u3000b"), (Strings{" \t", "\u3000"}));
  EXPECT_EQ(matches("[-a]+|[b-]", "a-b-"), (Strings{"a-", "b", "-"}));
  EXPECT_EQ(matches("[^\\x{0}-\\x{10FFFF}]|b", "ab"), Strings{"b"});  // nothing is in it
  EXPECT_EQ(matches("\\p{LU}|\\p{ h_an-}", "aB\u4e2d"), (Strings{"B", "\u4e2d"}));
}

// The JIT of PCRE2 10.42 matches "b\n" here.
TEST(Regex, AnAtomicGroupIsNotEnteredAgain) {
  EXPECT_EQ(matches("(?>[\\s\\S]*?\\n|[\\s\\S][^\\n]*){2}(?=.)", "ab\nSc"), Strings{});
  EXPECT_EQ(matches("(?:[\\s\\S]*?\\n|[\\s\\S][^\\n]*)++(?=.)", "ab\nSc"), Strings{});
}

TEST(Regex, MessagesHoldWholeCharacters) {
  const auto message = [](const char* pattern) {
    return message_of<UserError>([&] { Regex::from_oniguruma(pattern, "test"); });
  };
  expect_contains(message("\\\u4e2d"), "uses \\\u4e2d, which");
  expect_contains(message("(?\u4e2d)"), "uses the group \"(?\u4e2d\", which");
  expect_contains(message("(?"), "uses the group \"(?\", which");
}

TEST(Regex, MoreKindsOfCharactersThanSymbolsAreRefused) {
  std::string pattern;
  for (char32_t c = 0x4e00; c < 0x4e00 + 255; ++c) append_utf8(c, pattern);
  EXPECT_EQ(matches(pattern, "x" + pattern + "\u4e00"), Strings{pattern});
  append_utf8(0x5e00, pattern);
  expect_contains(message_of<UserError>([&] { Regex::from_oniguruma(pattern, "file F"); }), "257 kinds");
}

// Matches are places in the bytes of the text, wherever the search begins.
TEST(RegexMatcher, FindsFromAnyCharacter) {
  const Regex regex = Regex::from_oniguruma("\\p{L}+", "test");
  RegexMatcher matcher(regex);
  const std::string text = "\u4e2d\u6587 \u00e9t\u00e9 \U0001F600 z";
  matcher.begin(text);
  TextRange match;
  ASSERT_TRUE(matcher.find(7, match));
  EXPECT_EQ(match, (TextRange{7, 12}));
  ASSERT_TRUE(matcher.find(3, match));  // back
  EXPECT_EQ(match, (TextRange{3, 6}));
  ASSERT_TRUE(matcher.find(0, match));
  EXPECT_EQ(match, (TextRange{0, 6}));
  ASSERT_TRUE(matcher.find(12, match));
  EXPECT_EQ(match, (TextRange{18, 19}));
  EXPECT_FALSE(matcher.find(19, match));
  matcher.begin("\u00e9!");
  ASSERT_TRUE(matcher.find(0, match));
  EXPECT_EQ(match, (TextRange{0, 2}));
}

TEST(Regex, LiteralTextHasNoSyntax) {
  const Regex regex = Regex::literal("a.b(", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  matcher.begin("axb( a.b(");
  ASSERT_TRUE(matcher.find(0, match));
  EXPECT_EQ(match, (TextRange{5, 9}));
}

TEST(Regex, TooMuchBacktrackingIsAnError) {
  const Regex regex = Regex::from_oniguruma("(?:a+)+(?:b|[cd])", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  const std::string text(60, 'a');
  matcher.begin(text);
  EXPECT_THROW(matcher.find(0, match), RunError);
}

TEST(Regex, LongRunsNeedNoStack) {
  const std::string text = std::string(5'000'000, ' ') + "x";
  const Regex regex = Regex::from_oniguruma("\\s+(?!\\S)|\\s+", "test");
  RegexMatcher matcher(regex);
  TextRange match;
  matcher.begin(text);
  ASSERT_TRUE(matcher.find(0, match));
  EXPECT_EQ(match.end, text.size() - 2);
}

}  // namespace
}  // namespace meshtrain
