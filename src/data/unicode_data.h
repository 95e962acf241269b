// Properties of characters as the Hugging Face tokenizers library knows them; tests/reference/unicode_data.py
// says of which Unicode version they are. All ranges are sorted and apart from each other.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace meshtrain::unicode {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
};

// Characters from `first` to the next run's first; `kind` is an index into kCategories, or kAlternating: Lu,
// Ll, Lu…
struct CategoryRun {
  char32_t first;
  std::uint8_t kind;
};
inline constexpr std::string_view kCategories[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                                   "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                                   "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
inline constexpr std::uint8_t kAlternating = std::size(kCategories);
std::span<const CategoryRun> category_runs();

// A script's ranges are script_ranges()[begin, begin + count).
struct ScriptRanges {
  std::string_view name;
  std::uint32_t begin;
  std::uint32_t count;
};
std::span<const ScriptRanges> scripts();
std::span<const CodePointRange> script_ranges();

// Of every `step`th character from `first` to `last`: the one `back` before it differs from it in case alone,
// and is the least that does (simple case folding).
struct CaseRun {
  char32_t first;
  char32_t last;
  std::uint8_t step;
  std::uint32_t back;
};
std::span<const CaseRun> case_runs();
// Full case folding: the characters that fold to several, and how these several begin.
std::span<const CodePointRange> folds_to_several();
struct CharacterPair {
  char32_t first;
  char32_t second;
};
std::span<const CharacterPair> long_foldings();

// Numbers (Rust's char::is_numeric) that are not of category N here, because they came later.
std::span<const CodePointRange> later_numbers();
// What Oniguruma's \w has besides L, M, Nd, Nl and Pc, and what it has besides when it is not inside a class.
std::span<const CodePointRange> other_word();
std::span<const CodePointRange> bare_word();
// Assigned characters that the library's normalizers do not know: these leave them as they are.
std::span<const CodePointRange> unnormalized();

}  // namespace meshtrain::unicode
