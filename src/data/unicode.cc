#include "data/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/unicode_data.h"

namespace meshtrain {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]);
}

// Position of the first byte at or after `at` that is not ASCII.
std::size_t skip_ascii(std::string_view text, std::size_t at) {
  while (at + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
    at += 8;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

struct Sequence {
  std::size_t length;  // bytes of a whole character, or of the maximal ill-formed part
  bool valid;
  bool cut = false;  // by the end of the text alone
};

// Table 3-7 of the Unicode standard: well-formed byte sequences.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const std::uint8_t lead = byte_at(text, at);
  if (lead < 0x80) return {1, true};
  std::size_t length = 0;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {i, false, true};
    const std::uint8_t next = byte_at(text, at + i);
    if (next < low || next > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

// Ranges where every character is a starter that NFC leaves alone (NFC_Quick_Check=Yes, combining class
// 0). They hold most text that has no combining mark, so that most text is never copied.
constexpr char32_t kNfcStable[][2] = {
    {0x0000, 0x02FF}, {0x0388, 0x0482}, {0x048A, 0x0590},   {0x2010, 0x2027},
    {0x3001, 0x3029}, {0x3041, 0x3096}, {0x30A1, 0x30FA},   {0x4E00, 0x9FFF},
    {0xAC00, 0xD7A3}, {0xFF01, 0xFF60}, {0x1F300, 0x1FAFF},
};

bool nfc_stable(char32_t value) {
  for (const auto& range : kNfcStable) {
    if (value >= range[0] && value <= range[1]) return true;
  }
  return false;
}

// The category of every character, as an index into unicode::kCategories.
class CategoryTable {
 public:
  static const CategoryTable& instance() {
    static const CategoryTable table;
    return table;
  }

  std::uint8_t of(char32_t value) const { return entry(value) & kCategoryBits; }
  // Not by the library's normalizers, that is.
  bool is_normalized(char32_t value) const { return (entry(value) & kUnnormalized) == 0; }

 private:
  static constexpr std::uint8_t kCategoryBits = 0x1F;
  static constexpr std::uint8_t kUnnormalized = 0x20;
  static constexpr std::size_t kBlock = 256;

  CategoryTable() {
    std::vector<std::uint8_t> all(0x110000);
    const std::span<const unicode::CategoryRun> runs = unicode::category_runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::size_t end = i + 1 < runs.size() ? runs[i + 1].first : all.size();
      for (std::size_t value = runs[i].first; value < end; ++value) {
        const bool alternates = runs[i].kind == unicode::kAlternating;
        all[value] = alternates ? static_cast<std::uint8_t>(1 + (value - runs[i].first) % 2) : runs[i].kind;
        if (all[value] == 0) all[value] |= kUnnormalized;
      }
    }
    for (const unicode::CodePointRange& range : unicode::unnormalized()) {
      for (std::size_t value = range.first; value <= range.last; ++value) all[value] |= kUnnormalized;
    }
    std::map<std::string_view, std::uint32_t> known;
    for (std::size_t block = 0; block < block_of_.size(); ++block) {
      const std::string_view content(reinterpret_cast<const char*>(&all[block * kBlock]), kBlock);
      const auto [place, is_new] = known.try_emplace(content, static_cast<std::uint32_t>(blocks_.size()));
      if (is_new) blocks_.insert(blocks_.end(), content.begin(), content.end());
      block_of_[block] = place->second;
    }
  }

  std::uint8_t entry(char32_t value) const { return blocks_[block_of_[value / kBlock] + value % kBlock]; }

  std::array<std::uint32_t, 0x1100> block_of_{};  // by character / kBlock
  std::vector<std::uint8_t> blocks_;              // each once
};

// The first letter of the category: "L", "M", "N", …
char general_category(char32_t value) {
  return unicode::kCategories[CategoryTable::instance().of(value)][0];
}

void append_by_utf8proc(std::string_view text, Normalization form, std::string& out) {
  int options = UTF8PROC_STABLE;
  options |=
      form == Normalization::kNfc || form == Normalization::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Normalization::kNfkc || form == Normalization::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result,
                                               static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw_run_error("Unicode normalization failed: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
}

// What the Hugging Face library's normalizers do not know stays as it is, and nothing acts across it.
void append_normalized(std::string_view text, Normalization form, std::string& out) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!CategoryTable::instance().is_normalized(point.value)) {
      append_by_utf8proc(text.substr(done, at - done), form, out);
      out.append(text.substr(at, point.length));
      done = at + point.length;
    }
    at += point.length;
  }
  append_by_utf8proc(text.substr(done), form, out);
}

// NFC, copying only where a character outside the stable ranges occurs. An ASCII character composes with
// nothing before it, so the text may be cut before each.
std::string_view normalize_nfc(std::string_view text, std::string& storage) {
  std::size_t copied = 0;  // text[0, copied) is in storage; nothing has changed while it is 0
  bool changed = false;
  std::size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const std::size_t begin = at > 0 ? at - 1 : 0;
    bool stable = true;
    while (at < text.size() && byte_at(text, at) >= 0x80) {
      const CodePoint point = code_point_at(text, at);
      stable = stable && nfc_stable(point.value);
      at += point.length;
    }
    if (stable) continue;
    if (!changed) storage.clear();
    changed = true;
    storage.append(text.substr(copied, begin - copied));
    append_normalized(text.substr(begin, at - begin), Normalization::kNfc, storage);
    copied = at;
  }
  if (!changed) return text;
  storage.append(text.substr(copied));
  return storage;
}

}  // namespace

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  std::size_t at = 0;
  std::size_t copied = 0;
  bool changed = false;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.valid) {
      if (!changed) storage.clear();
      changed = true;
      storage.append(text.substr(copied, at - copied));
      storage.append("\xEF\xBF\xBD");
      copied = at + sequence.length;
    }
    at += sequence.length;
  }
  if (!changed) return text;
  storage.append(text.substr(copied));
  return storage;
}

std::size_t well_formed_until(std::string_view text) {
  std::size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.valid) break;
    at += sequence.length;
  }
  return at;
}

std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const Sequence sequence = sequence_at(text, text.size() - back);
    if (sequence.cut && sequence.length == back) return back;
  }
  return 0;
}

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const std::uint8_t lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](std::size_t i) { return static_cast<char32_t>(byte_at(text, at + i) & 0x3FU); };
  if (lead < 0xE0) return {(lead & 0x1FU) << 6U | tail(1), 2};
  if (lead < 0xF0) return {(lead & 0x0FU) << 12U | tail(1) << 6U | tail(2), 3};
  return {(lead & 0x07U) << 18U | tail(1) << 12U | tail(2) << 6U | tail(3), 4};
}

CodePoint code_point_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (byte_at(text, at) & 0xC0U) == 0x80) --at;
  return code_point_at(text, at);
}

void append_utf8(char32_t value, std::string& text) {
  const auto tail = [&](unsigned shift) {
    text.push_back(static_cast<char>(0x80U | (value >> shift & 0x3FU)));
  };
  if (value < 0x80) {
    text.push_back(static_cast<char>(value));
  } else if (value < 0x800) {
    text.push_back(static_cast<char>(0xC0U | value >> 6U));
    tail(0);
  } else if (value < 0x10000) {
    text.push_back(static_cast<char>(0xE0U | value >> 12U));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0U | value >> 18U));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_space(char32_t value) {
  if (value < 0x80) return value == ' ' || (value >= 0x09 && value <= 0x0D);
  return value == 0x85 || general_category(value) == 'Z';
}

bool is_letter(char32_t value) {
  return general_category(value) == 'L';
}

bool is_number(char32_t value) {
  if (value < 0x80) return value >= '0' && value <= '9';
  if (general_category(value) == 'N') return true;
  const std::span<const unicode::CodePointRange> later = unicode::later_numbers();
  return std::any_of(later.begin(), later.end(), [&](const unicode::CodePointRange& range) {
    return value >= range.first && value <= range.last;
  });
}

bool is_word(char32_t value) {
  const std::string_view category = unicode::kCategories[CategoryTable::instance().of(value)];
  if (category[0] == 'L' || category[0] == 'M') return true;
  if (category == "Nd" || category == "Nl" || category == "Pc") return true;
  // Join_Control, and the symbols with Other_Alphabetic.
  return value == 0x200C || value == 0x200D || (value >= 0x24B6 && value <= 0x24E9) ||
         (value >= 0x1F130 && value <= 0x1F149) || (value >= 0x1F150 && value <= 0x1F169) ||
         (value >= 0x1F170 && value <= 0x1F189);
}

std::string_view normalize(std::string_view text, Normalization form, std::string& storage) {
  if (form == Normalization::kNfc) return normalize_nfc(text, storage);
  if (skip_ascii(text, 0) == text.size()) return text;
  storage.clear();
  append_normalized(text, form, storage);
  return storage;
}

}  // namespace meshtrain
