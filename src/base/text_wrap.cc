#include "base/text_wrap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace meshtrain {
namespace {

using Range = std::pair<std::uint32_t, std::uint32_t>;

// Unicode 15: nonspacing marks of common scripts, and what has no width of its own.
constexpr std::array<Range, 6> kNarrowest = {{{0x0300, 0x036F},
                                              {0x0483, 0x0489},
                                              {0x0591, 0x05BD},
                                              {0x200B, 0x200F},
                                              {0x20D0, 0x20F0},
                                              {0xFE00, 0xFE0F}}};
// East_Asian_Width W and F, in ranges that are rounded to blocks.
constexpr std::array<Range, 9> kWide = {{{0x1100, 0x115F},
                                         {0x2E80, 0x303E},
                                         {0x3041, 0xA4CF},
                                         {0xAC00, 0xD7A3},
                                         {0xF900, 0xFAFF},
                                         {0xFE30, 0xFE6F},
                                         {0xFF00, 0xFF60},
                                         {0xFFE0, 0xFFE6},
                                         {0x1F300, 0x1FAFF}}};
constexpr Range kIdeographs = {0x20000, 0x3FFFD};

template <std::size_t N>
bool lies_in(std::uint32_t point, const std::array<Range, N>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [point](const Range& range) { return point >= range.first && point <= range.second; });
}

std::size_t columns_of_point(std::uint32_t point) {
  if (point < 0x20 || (point >= 0x7F && point < 0xA0) || lies_in(point, kNarrowest)) return 0;
  return lies_in(point, kWide) || (point >= kIdeographs.first && point <= kIdeographs.second) ? 2 : 1;
}

// The character that `text` begins with, and its bytes; a byte that begins none stands for a replacement.
std::pair<std::uint32_t, std::size_t> first_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  constexpr std::uint32_t kReplacement = 0xFFFD;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {kReplacement, 1};
  std::uint32_t point = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0U) != 0x80) return {kReplacement, 1};
    point = point << 6U | (byte & 0x3FU);
  }
  return {point, length};
}

// Behind the closing quote of what begins at `at`; `at` where none closes it.
std::size_t end_of_quote(std::string_view line, std::size_t at) {
  for (std::size_t i = at + 1; i < line.size(); ++i) {
    if (line[i] == '\\' && line[at] == '"') {
      ++i;
    } else if (line[i] == line[at]) {
      return i + 1;
    }
  }
  return at;
}

// The end of the word at `at`: a space outside of quotes and backticks, or the end of the line.
std::size_t end_of_word(std::string_view line, std::size_t at) {
  while (at < line.size() && line[at] != ' ') {
    const bool quotes = line[at] == '`' || line[at] == '"';
    at = quotes ? std::max(at + 1, end_of_quote(line, at)) : at + 1;
  }
  return at;
}

bool is_value(std::string_view word) {
  const char first = word.front();
  return (first >= '0' && first <= '9') || (first >= 'A' && first <= 'Z') || first == '"';
}

// Whether `word`, an option without a value of its own, and `next`, a value or a placeholder for one, belong
// together.
bool is_option_with_value(std::string_view word, std::string_view next) {
  word.remove_prefix(std::min(word.find_first_not_of('('), word.size()));
  if (!word.starts_with("--") || word.size() < 3 || !is_value(next)) return false;
  return word.find_first_not_of("abcdefghijklmnopqrstuvwxyz-") == std::string_view::npos;
}

// Words that stay on one line: key = value, 3 .. 5, -s key=value, --option VALUE.
std::size_t end_of_unit(std::string_view line, std::size_t begin) {
  std::size_t end = end_of_word(line, begin);
  std::string_view word = line.substr(begin, end - begin);
  while (end + 1 < line.size() && line[end + 1] != ' ') {
    const std::size_t next_end = end_of_word(line, end + 1);
    const std::string_view next = line.substr(end + 1, next_end - end - 1);
    const bool joined = word == "=" || next == "=" || word == ".." || next == ".." || word == "-s";
    if (!joined && !is_option_with_value(word, next)) break;
    word = next;
    end = next_end;
  }
  return end;
}

std::string wrap_line(std::string_view line, std::size_t columns) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::string text(line.substr(0, indent));
  std::size_t used = indent;
  bool first = true;  // of its line
  for (std::size_t at = indent; at < line.size();) {
    const std::size_t begin = line.find_first_not_of(' ', at);
    if (begin == std::string_view::npos) break;  // spaces at the end
    const std::size_t end = end_of_unit(line, begin);
    const std::string_view unit = line.substr(begin, end - begin);
    const std::size_t width = columns_of(unit);
    if (!first && used + (begin - at) + width > columns) {
      text.append("\n").append(indent, ' ');
      used = indent;
    } else {
      text.append(begin - at, ' ');
      used += begin - at;
    }
    text.append(unit);
    used += width;
    first = false;
    at = end;
  }
  return text;
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const auto [point, bytes] = first_point(text);
    columns += columns_of_point(point);
    text.remove_prefix(bytes);
  }
  return columns;
}

std::string wrap(std::string_view text, std::size_t columns) {
  std::string wrapped;
  for (;;) {
    const std::size_t feed = text.find('\n');
    wrapped += wrap_line(text.substr(0, feed), columns);
    if (feed == std::string_view::npos) return wrapped;
    wrapped += '\n';
    text.remove_prefix(feed + 1);
  }
}

}  // namespace meshtrain
