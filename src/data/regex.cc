#include "data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "data/oniguruma.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

constexpr std::uint32_t kMatchLimit = 100'000'000;
constexpr std::size_t kJitStackBytes = 16U << 20U;
constexpr std::size_t kMostSymbols = 256;
constexpr std::size_t kBlock = 256;

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// Characters that no set tells apart: [first, the next one's first), and which sets hold them.
struct Interval {
  char32_t first;
  std::vector<bool> member;
};

std::vector<Interval> intervals_of(const std::vector<CodePointSet>& sets) {
  struct Change {
    char32_t at;
    std::size_t set;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const CodePointRange& range : sets[i].ranges()) {
      changes.push_back({range.first, i});
      if (range.last < kLastCodePoint) changes.push_back({range.last + 1, i});
    }
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.at < b.at; });
  std::vector<Interval> intervals = {{0, std::vector<bool>(sets.size())}};
  for (const Change& change : changes) {
    if (intervals.back().first != change.at) intervals.push_back({change.at, intervals.back().member});
    intervals.back().member[change.set].flip();
  }
  return intervals;
}

// The class of these symbols as PCRE2 reads it without UTF; no symbol: a class that nothing is in.
std::string class_of(const std::vector<std::uint8_t>& symbols) {
  if (symbols.empty()) return R"([^\x00-\xFF])";
  if (symbols.size() == 1) return fmt::format("\\x{:02X}", symbols[0]);
  std::string text = "[";
  for (std::size_t i = 0; i < symbols.size();) {
    std::size_t end = i + 1;
    while (end < symbols.size() && symbols[end] == symbols[end - 1] + 1) ++end;
    text += fmt::format("\\x{:02X}-\\x{:02X}", symbols[i], symbols[end - 1]);
    i = end;
  }
  return text + "]";
}

// Whether a group is never backtracked into: (?>…), or (…) with *+, ++ or ?+.
bool has_atomic_group(const Pattern& pattern) {
  for (std::size_t i = 0; i < pattern.parts.size(); ++i) {
    const std::string& syntax = pattern.parts[i].syntax;
    if (syntax == "(?>" || (syntax == "+" && i >= 2 && pattern.parts[i - 2].syntax == ")")) return true;
  }
  return false;
}

}  // namespace

SymbolTable::SymbolTable(const Pattern& pattern, const std::string& where) : set_symbols_(pattern.sets.size()) {
  const std::vector<Interval> intervals = intervals_of(pattern.sets);
  // In the order of their memberships, so that the symbols of a set lie together.
  std::map<std::vector<bool>, std::uint8_t> symbols;
  for (const Interval& interval : intervals) {
    symbols.try_emplace(interval.member, std::uint8_t{0});
  }
  if (symbols.size() > kMostSymbols) {
    throw_user_error(
        "{}: the regular expression tells {} kinds of characters apart, and at most {} are supported", where,
        symbols.size(), kMostSymbols);
  }
  std::uint8_t next = 0;
  for (auto& [member, symbol] : symbols) {
    symbol = next++;
    for (std::size_t i = 0; i < member.size(); ++i) {
      if (member[i]) set_symbols_[i].push_back(symbol);
    }
  }
  std::map<std::array<std::uint8_t, kBlock>, std::uint32_t> known;
  auto interval = intervals.begin();
  std::uint8_t symbol = symbols.at(interval->member);
  for (std::size_t block = 0; block < block_of_.size(); ++block) {
    std::array<std::uint8_t, kBlock> content{};
    for (std::size_t at = 0; at < kBlock;) {
      while (interval + 1 != intervals.end() && (interval + 1)->first <= block * kBlock + at)
        symbol = symbols.at((++interval)->member);
      const std::size_t rest =
          interval + 1 == intervals.end() ? kBlock : (interval + 1)->first - block * kBlock;
      const std::size_t end = std::min(rest, kBlock);
      std::fill(content.begin() + static_cast<std::ptrdiff_t>(at),
                content.begin() + static_cast<std::ptrdiff_t>(end), symbol);
      at = end;
    }
    const auto [place, is_new] = known.try_emplace(content, static_cast<std::uint32_t>(blocks_.size()));
    if (is_new) blocks_.insert(blocks_.end(), content.begin(), content.end());
    block_of_[block] = place->second;
  }
}

Regex::Regex(const Pattern& pattern, std::string_view shown, const std::string& where)
    : symbols_(std::make_shared<const SymbolTable>(pattern, where)) {
  std::string pcre;
  for (const PatternPart& part : pattern.parts) {
    pcre += part.set == PatternPart::kNone ? part.syntax : class_of(symbols_->of_set(part.set));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(), 0, &error, &offset, nullptr);
  if (code == nullptr) {
    throw_user_error("{}: the regular expression \"{}\" cannot be compiled: {}", where, shown,
                     pcre_message(error));
  }
  code_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // Without a JIT (another processor, or one forbidden by the system) the interpreter gives the same matches;
  // and the right ones where the JIT (of version 10.42) does not find its way out of an atomic group.
  has_jit_ = !has_atomic_group(pattern) && pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
}

Regex Regex::from_oniguruma(std::string_view pattern, const std::string& where) {
  return Regex(parse_oniguruma(pattern, where), pattern, where);
}

Regex Regex::literal(std::string_view text, const std::string& where) {
  Pattern pattern;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    pattern.add(CodePointSet({{point.value, point.value}}));
    at += point.length;
  }
  return Regex(pattern, text, where);
}

RegexMatcher::RegexMatcher(const Regex& regex)
    : table_(regex.symbols_),
      code_(regex.code_),
      has_jit_(regex.has_jit_),
      match_data_(pcre2_match_data_create(1, nullptr),
                  [](void* p) { pcre2_match_data_free(static_cast<pcre2_match_data*>(p)); }),
      match_context_(pcre2_match_context_create(nullptr),
                     [](void* p) { pcre2_match_context_free(static_cast<pcre2_match_context*>(p)); }),
      jit_stack_(pcre2_jit_stack_create(32U << 10U, kJitStackBytes, nullptr),
                 [](void* p) { pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(p)); }) {
  auto* context = static_cast<pcre2_match_context*>(match_context_.get());
  pcre2_set_match_limit(context, kMatchLimit);
  pcre2_jit_stack_assign(context, nullptr, jit_stack_.get());
}

void RegexMatcher::begin(std::string_view text) {
  text_ = text;
  place_ = {};
  end_ = {};
  if (capacity_ < text.size()) {
    symbols_ = std::make_unique_for_overwrite<std::uint8_t[]>(text.size());
    capacity_ = text.size();
  }
  std::uint8_t* const symbols = symbols_.get();
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {
      symbols[count++] = table_->of(byte);
      ++at;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    symbols[count++] = table_->of(point.value);
    at += point.length;
  }
  count_ = count;
}

void RegexMatcher::advance_to_symbol(Place& place, std::size_t symbol) const {
  if (count_ == text_.size()) {  // ASCII alone
    place = {symbol, symbol};
    return;
  }
  while (place.symbol < symbol) {
    ++place.symbol;
    do ++place.byte;
    while (place.byte < text_.size() && (static_cast<unsigned char>(text_[place.byte]) & 0xC0U) == 0x80);
  }
}

bool RegexMatcher::find(std::size_t from, TextRange& match) {
  if (from >= end_.byte) {
    place_ = end_;
  } else if (from < place_.byte) {
    place_ = {};
  }
  if (count_ == text_.size()) {
    place_ = {from, from};
  } else {
    while (place_.byte < from) advance_to_symbol(place_, place_.symbol + 1);
  }
  auto* data = static_cast<pcre2_match_data*>(match_data_.get());
  const auto match_function = has_jit_ ? &pcre2_jit_match : &pcre2_match;
  const int count =
      match_function(static_cast<const pcre2_code*>(code_.get()), symbols_.get(), count_, place_.symbol, 0,
                     data, static_cast<pcre2_match_context*>(match_context_.get()));
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw_run_error("the tokenizer's regular expression failed at byte {} of a text of {} bytes: {}", from,
                    text_.size(), pcre_message(count));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  Place place = place_;
  advance_to_symbol(place, offsets[0]);
  match.begin = place.byte;
  advance_to_symbol(place, offsets[1]);
  match.end = place.byte;
  end_ = place;
  return true;
}

}  // namespace meshtrain
