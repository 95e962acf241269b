// Rewriting Oniguruma's syntax (as of its document RE, Ruby syntax) for PCRE2 (pcre2pattern(3)).
//
// Read differently, so rewritten:  \s and \S (PCRE2 adds U+180E), \v, \h, \uHHHH, \p{^...}, \p{Han} (PCRE2
// means script extensions). Read differently and rare, so refused: \w and \b (other sets of characters), ^
// and $ (Oniguruma's are multi-line), nested classes and && (literal in PCRE2), X{n,m}+ and X{n}? (possessive
// and lazy in PCRE2 only), and every group, flag or escape that is not listed here.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/regex.h"

namespace meshtrain {
namespace {

constexpr std::string_view kSpaceSet = R"(\t-\r\x{85}\p{Z})";
constexpr std::array<std::string_view, 37> kGeneralCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) top_level();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw_user_error("{}: the regular expression \"{}\" uses {}, which is not supported", where_, pattern_,
                     what);
  }

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void top_level() {
    switch (pattern_[at_]) {
      case '\\':
        escape(false);
        return;
      case '[':
        bracket();
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
      case '^':
      case '$':
        refuse("the anchor ^ or $");
      default:
        copy(1);
    }
  }

  void group() {
    ++depth_;
    if (!next_is("(?")) {
      copy(1);
      return;
    }
    for (const std::string_view start : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (next_is(start)) {
        copy(start.size());
        return;
      }
    }
    if (next_is("(?i:")) {
      if (caseless_depth_ == 0) caseless_depth_ = depth_;
      copy(4);
      return;
    }
    refuse(fmt::format("the group \"{}\"", pattern_.substr(at_, 4)));
  }

  // {n}, {n,}, {n,m}; PCRE2 reads {,m} as text.
  void interval() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && (is_digit(pattern_[end]) || pattern_[end] == ',')) ++end;
    if (end == pattern_.size() || pattern_[end] != '}' || !is_digit(pattern_[at_ + 1])) {
      refuse("a { that starts no {n,m}");
    }
    copy(end + 1 - at_);
    if (next_is("+") || next_is("?")) refuse("{n,m}+ or {n,m}?");
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  void bracket() {
    copy(next_is("[^") ? 2 : 1);
    if (next_is("]")) refuse("an empty class");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') refuse("a class inside a class");
      if (next_is("&&")) refuse("&& inside a class");
      if (pattern_[at_] == '\\') {
        escape(true);
      } else {
        copy(1);
      }
    }
    if (at_ == pattern_.size()) refuse("a [ without ]");
    copy(1);
  }

  void escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) refuse("a trailing backslash");
    const char kind = pattern_[at_ + 1];
    switch (kind) {
      case 's':
        out_ += in_class ? std::string(kSpaceSet) : fmt::format("[{}]", kSpaceSet);
        at_ += 2;
        return;
      case 'S':
        if (in_class) refuse("\\S inside a class");
        out_ += fmt::format("[^{}]", kSpaceSet);
        at_ += 2;
        return;
      case 'v':
        out_ += R"(\x{0B})";
        at_ += 2;
        return;
      case 'd':
      case 'D':
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        copy(2);
        return;
      case 'p':
      case 'P':
        property();
        return;
      case 'x':
      case 'u':
        hexadecimal();
        return;
      default:
        if (is_letter(kind) || is_digit(kind) || static_cast<unsigned char>(kind) >= 0x80) {
          refuse(fmt::format("\\{}", kind));
        }
        copy(2);
    }
  }

  void hexadecimal() {
    const bool four = pattern_[at_ + 1] == 'u';
    const bool braces = !four && next_is("\\x{");
    const std::size_t begin = at_ + (braces ? 3 : 2);
    std::size_t end = begin;
    const std::size_t limit = braces ? 8 : four ? 4 : 2;
    while (end < pattern_.size() && end < begin + limit && is_hex(pattern_[end])) ++end;
    const bool closed = !braces || (end < pattern_.size() && pattern_[end] == '}');
    // \x80 and above is a byte to Oniguruma and a character to PCRE2.
    const bool byte = !four && !braces && end > begin && pattern_[begin] >= '8';
    if (end == begin || !closed || (four && end != begin + 4) || byte) refuse("a malformed \\x or \\u");
    out_ += fmt::format("\\x{{{}}}", pattern_.substr(begin, end - begin));
    at_ = end + (braces ? 1 : 0);
  }

  void property() {
    const std::size_t close = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == std::string_view::npos) {
      refuse("\\p without {NAME}");
    }
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const bool caret = name.starts_with('^');
    if (caret) name.remove_prefix(1);
    const bool negative = caret != (pattern_[at_ + 1] == 'P');
    if (caseless_depth_ != 0) refuse(fmt::format("\\p{{{}}} inside (?i:...)", name));
    const bool category =
        std::find(kGeneralCategories.begin(), kGeneralCategories.end(), name) != kGeneralCategories.end();
    for (const char c : name) {
      if (!is_letter(c) && c != '_') refuse(fmt::format("the property \\p{{{}}}", name));
    }
    out_ += fmt::format("\\{}{{{}{}}}", negative ? 'P' : 'p', category ? "" : "sc:", name);
    at_ = close + 1;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int caseless_depth_ = 0;  // of the outermost (?i: group that is open; 0: none
  std::string out_;
};

}  // namespace

std::string oniguruma_to_pcre(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace meshtrain
