#include "data/oniguruma.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

constexpr std::size_t kMostSets = 1000;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Of \d, \h, \s, \w (small letters).
std::optional<CodePointSet> shorthand_set(char letter, bool in_class) {
  switch (letter) {
    case 'd':
      return property_set("Nd");
    case 'h':
      return CodePointSet({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
    case 's':
      return space_set();
    case 'w': {
      CodePointSet set = word_set();
      if (!in_class) set.add(unicode::bare_word());
      return set;
    }
    default:
      return std::nullopt;
  }
}

std::optional<char32_t> control_character(char letter) {
  constexpr std::string_view kLetters = "tvnrfae";
  constexpr std::string_view kValues = "\t\v\n\r\f\a\x1B";
  const std::size_t at = kLetters.find(letter);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<unsigned char>(kValues[at]);
}

class Parser {
 public:
  Parser(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  Pattern run() {
    while (at_ < pattern_.size()) {
      top_level();
      if (result_.sets.size() > kMostSets) refuse(fmt::format("more than {} different classes", kMostSets));
    }
    return std::move(result_);
  }

 private:
  // One character or a class.
  struct Item {
    std::optional<char32_t> character;
    CodePointSet set;
  };

  [[noreturn]] void refuse(std::string_view what) const {
    throw_user_error("{}: the regular expression \"{}\" uses {}, which is not supported", where_, pattern_,
                     what);
  }

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  std::string_view whole_character(std::size_t at) const {
    return at == pattern_.size() ? "" : pattern_.substr(at, code_point_at(pattern_, at).length);
  }
  bool at_end() const { return at_ == pattern_.size(); }

  void copy(std::size_t count) {
    result_.parts.push_back({.syntax = std::string(pattern_.substr(at_, count))});
    at_ += count;
  }

  void top_level() {
    switch (pattern_[at_]) {
      case '\\':
        put(escape());
        return;
      case '[':
        last_caseless_.reset();
        result_.add(bracket());
        return;
      case '.':
        ++at_;
        put({.character = std::nullopt, .set = CodePointSet({{'\n', '\n'}}).complement()});
        return;
      case '(':
        group();
        return;
      case ')':
        if (caseless_depth_ == depth_) caseless_depth_ = 0;
        --depth_;
        copy(1);
        return;
      case '{':
        interval();
        return;
      case '|':
      case '*':
      case '+':
      case '?':
        last_caseless_.reset();
        copy(1);
        return;
      case '^':
      case '$':
        refuse("the anchor ^ or $");
      default:
        put({.character = literal(), .set = {}});
    }
  }

  void put(Item item) {
    if (!item.character) {
      last_caseless_.reset();
      result_.add(item.set);
      return;
    }
    const char32_t value = *item.character;
    CodePointSet set({{value, value}});
    if (caseless_depth_ != 0) {
      set.add_other_cases();
      // Oniguruma takes U+00DF for "ss" there.
      if (folds_to_several(value) || (last_caseless_ && begins_long_folding(*last_caseless_, value)))
        refuse("characters inside (?i:...) that one character can stand for, or the other way round");
      last_caseless_ = value;
    } else {
      last_caseless_.reset();
    }
    result_.add(set);
  }

  char32_t literal() {
    const CodePoint point = code_point_at(pattern_, at_);
    at_ += point.length;
    return point.value;
  }

  void group() {
    ++depth_;
    for (const std::string_view start : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (!next_is(start)) continue;
      copy(start.size());
      return;
    }
    if (next_is("(?i:")) {
      if (caseless_depth_ == 0) caseless_depth_ = depth_;
      at_ += 4;
      result_.parts.push_back({.syntax = "(?:"});
      return;
    }
    if (next_is("(?") || next_is("(*"))
      refuse(fmt::format("the group \"{}{}\"", pattern_.substr(at_, 2), whole_character(at_ + 2)));
    copy(1);
  }

  // {n}, {n,}, {n,m}; PCRE2 reads {,m} as text, X{n,m}+ as possessive and X{n}? as lazy.
  void interval() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) ++end;
    if (end == pattern_.size() || pattern_[end] != '}' || !is_digit(pattern_[at_ + 1])) {
      refuse("a { that starts no {n,m}");
    }
    last_caseless_.reset();
    copy(end + 1 - at_);
    if (next_is("+") || next_is("?")) refuse("{n,m}+ or {n,m}?");
  }

  // At a "[".
  CodePointSet bracket() {
    if (++nesting_ > 50) refuse("classes nested more than 50 deep");
    ++at_;
    const bool negative = next_is("^");
    if (negative) ++at_;
    std::optional<CodePointSet> all = operand();
    while (next_is("&&")) {
      if (caseless_depth_ != 0) refuse("&& inside (?i:...)");
      at_ += 2;
      all->keep_only(operand());
    }
    ++at_;  // "]"
    --nesting_;
    if (caseless_depth_ != 0) all->add_other_cases();
    return negative ? all->complement() : *all;
  }

  // What stands before "]" or "&&".
  CodePointSet operand() {
    CodePointSet set;
    bool any = false;
    while (!next_is("&&") && !next_is("]")) {
      if (at_end()) refuse("a [ without ]");
      Item first;
      if (next_is("[:")) refuse("a POSIX bracket");
      if (next_is("[")) {
        if (caseless_depth_ != 0) refuse("a class inside a class inside (?i:...)");
        first.set = bracket();
      } else if (next_is("-")) {
        ++at_;
        if ((any && !next_is("]")) || next_is("-")) refuse("a - inside a class that is neither first nor last");
        first.character = U'-';
      } else {
        first = next_is("\\") ? escape() : Item{.character = literal(), .set = {}};
      }
      any = true;
      if (!first.character) {
        set.add(first.set);
        continue;
      }
      const char32_t last = next_is("-") && pattern_.substr(at_, 2) != "-]" ? range_end() : *first.character;
      if (last < *first.character) refuse("an empty range");
      if (caseless_depth_ != 0 && any_folds_to_several(*first.character, last))
        refuse("characters inside (?i:...) that several characters can stand for");
      set.add(*first.character, last);
    }
    if (!any) refuse("an empty class");
    return set;
  }

  char32_t range_end() {
    ++at_;
    if (at_end() || next_is("[") || next_is("-") || next_is("&&")) refuse("a range without an end");
    const Item last = next_is("\\") ? escape() : Item{.character = literal(), .set = {}};
    if (!last.character) refuse("a range that ends with a class");
    return *last.character;
  }

  static bool any_folds_to_several(char32_t first, char32_t last) {
    CodePointSet set;
    set.add(unicode::folds_to_several());
    set.keep_only(CodePointSet({{first, last}}));
    return !set.ranges().empty();
  }

  // At a "\".
  Item escape() {
    if (at_ + 1 == pattern_.size()) refuse("a trailing backslash");
    const char kind = pattern_[at_ + 1];
    if (kind == 'p' || kind == 'P') return {.character = std::nullopt, .set = property()};
    if (kind == 'x' || kind == 'u') return {.character = hexadecimal(), .set = {}};
    const auto small = static_cast<char>(kind | 0x20);
    if (const auto set = is_letter(kind) ? shorthand_set(small, nesting_ > 0) : std::nullopt) {
      at_ += 2;
      return {.character = std::nullopt, .set = kind == small ? *set : set->complement()};
    }
    if (const auto control = control_character(kind)) {
      at_ += 2;
      return {.character = control, .set = {}};
    }
    if (is_letter(kind) || is_digit(kind) || static_cast<unsigned char>(kind) >= 0x80) {
      refuse(fmt::format("\\{}", whole_character(at_ + 1)));
    }
    at_ += 2;
    return {.character = static_cast<unsigned char>(kind), .set = {}};
  }

  char32_t hexadecimal() {
    const bool four = pattern_[at_ + 1] == 'u';
    const bool braces = !four && next_is("\\x{");
    const std::size_t begin = at_ + (braces ? 3 : 2);
    std::size_t end = begin;
    const std::size_t limit = braces ? 8 : four ? 4 : 2;
    while (end < pattern_.size() && end < begin + limit && is_hex(pattern_[end])) ++end;
    const bool closed = !braces || (end < pattern_.size() && pattern_[end] == '}');
    // \x80 and above is a byte to Oniguruma.
    const bool byte = !four && !braces && end == begin + 2 && pattern_[begin] >= '8';
    if (end == begin || !closed || (four && end != begin + 4) || byte) refuse("a malformed \\x or \\u");
    const unsigned long value = std::stoul(std::string(pattern_.substr(begin, end - begin)), nullptr, 16);
    if (value > kLastCodePoint || (value >= 0xD800 && value <= 0xDFFF))
      refuse("a \\x or \\u that is not a character");
    at_ = end + (braces ? 1 : 0);
    return static_cast<char32_t>(value);
  }

  CodePointSet property() {
    const std::size_t close = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == std::string_view::npos) {
      refuse("\\p without {NAME}");
    }
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const bool caret = name.starts_with('^');
    if (caret) name.remove_prefix(1);
    if (caseless_depth_ != 0) refuse(fmt::format("\\p{{{}}} inside (?i:...)", name));
    const std::optional<CodePointSet> set = property_set(name);
    if (!set) refuse(fmt::format("the property \\p{{{}}}", name));
    const bool negative = caret != (pattern_[at_ + 1] == 'P');
    at_ = close + 1;
    return negative ? set->complement() : *set;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int caseless_depth_ = 0;  // of the outermost (?i: group that is open; 0: none
  int nesting_ = 0;
  std::optional<char32_t> last_caseless_;  // the character just before, where case does not count
  Pattern result_;
};

}  // namespace

void Pattern::add(const CodePointSet& set) {
  const auto found = std::find(sets.begin(), sets.end(), set);
  parts.push_back({.syntax = {}, .set = static_cast<std::size_t>(found - sets.begin())});
  if (found == sets.end()) sets.push_back(set);
}

Pattern parse_oniguruma(std::string_view pattern, const std::string& where) {
  return Parser(pattern, where).run();
}

}  // namespace meshtrain
