// Sets of characters, as the classes of regular expressions write them.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/unicode_data.h"

namespace meshtrain {

using unicode::CodePointRange;

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<CodePointRange> ranges);

  // In any order, also overlapping.
  void add(std::span<const CodePointRange> ranges);
  void add(const CodePointSet& other) { add(other.ranges_); }
  void add(char32_t first, char32_t last);
  // Whatever differs from a member in case alone (simple case folding).
  void add_other_cases();
  void keep_only(const CodePointSet& other);
  CodePointSet complement() const;

  bool contains(char32_t value) const;
  // Sorted, apart from each other.
  std::span<const CodePointRange> ranges() const { return ranges_; }
  friend bool operator==(const CodePointSet&, const CodePointSet&) = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// The set that \p{NAME} means: a general category ("L", "Lu") or a script ("Han"), with any case, and spaces,
// "-" and
// "_" where one likes. nullopt: neither.
std::optional<CodePointSet> property_set(std::string_view name);
CodePointSet space_set();  // \s: property White_Space
CodePointSet word_set();   // \w inside a class
// Whether one character folds to several that begin with these two, without case; or `value` folds to several.
bool begins_long_folding(char32_t first, char32_t second);
bool folds_to_several(char32_t value);

}  // namespace meshtrain
