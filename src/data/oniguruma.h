// Regular expressions written for Oniguruma (as of its document RE, Ruby syntax), taken apart into classes of
// characters and what stands between them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "data/code_point_set.h"

namespace meshtrain {

// Either a class, sets[set], or text that PCRE2 (pcre2pattern(3)) reads as Oniguruma does: "(?:", "|", "+",
// "{1,3}".
struct PatternPart {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::string syntax;
  std::size_t set = kNone;
};

struct Pattern {
  std::vector<PatternPart> parts;
  std::vector<CodePointSet> sets;  // each once

  void add(const CodePointSet& set);
};

// A single character is a class of one. Throws UserError naming `where` (file and field) and what in the
// pattern is not supported: what the two libraries read differently, and every group, flag and escape that is
// not known here.
Pattern parse_oniguruma(std::string_view pattern, const std::string& where);

}  // namespace meshtrain
