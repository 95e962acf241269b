// Regular expressions of tokenizer.json files. They are written for Oniguruma; we run them through PCRE2
// (UTF, Unicode properties, JIT) after rewriting what the two read differently and refusing what we do not
// know to be equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace meshtrain {

struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

// Compiled once, shared by threads.
class Regex {
 public:
  // Throws UserError naming `where` (file and field) and what in the pattern is not supported.
  static Regex from_oniguruma(std::string_view pattern, const std::string& where);
  static Regex literal(std::string_view text, const std::string& where);

 private:
  friend class RegexMatcher;
  Regex(std::string_view pcre, std::uint32_t options, std::string_view shown, const std::string& where);

  std::shared_ptr<void> code_;
};

// Scratch memory of one thread.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);

  // The first match in `text` (well-formed UTF-8) at or after `from`; false when there is none. Throws
  // RunError when the pattern needs more backtracking than is sane.
  bool find(std::string_view text, std::size_t from, TextRange& match);

 private:
  std::shared_ptr<void> code_;
  std::shared_ptr<void> match_data_;
  std::shared_ptr<void> match_context_;
  std::shared_ptr<void> jit_stack_;
};

// Oniguruma's pattern as PCRE2 reads it. Public for its tests.
std::string oniguruma_to_pcre(std::string_view pattern, const std::string& where);

}  // namespace meshtrain
