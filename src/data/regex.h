// Regular expressions of tokenizer.json files, which are written for Oniguruma. PCRE2 (with its JIT) runs their
// structure alone: what a class of characters holds is decided by data/unicode_data.h, whatever Unicode version
// the installed library has. The characters that no class of a pattern tells apart are one symbol, a byte; the
// pattern is rewritten to classes of symbols, and a text is matched as its symbols.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

struct Pattern;

// The symbol of every character.
class SymbolTable {
 public:
  // Gives characters with the same membership in all sets the same symbol. Throws UserError naming `where` when
  // there are more than 256.
  SymbolTable(const Pattern& pattern, const std::string& where);

  std::uint8_t of(char32_t value) const { return blocks_[block_of_[value >> 8U] + (value & 0xFFU)]; }
  // Symbols of sets[i].
  const std::vector<std::uint8_t>& of_set(std::size_t i) const { return set_symbols_[i]; }

 private:
  std::array<std::uint32_t, 0x1100> block_of_{};  // by character / 256
  std::vector<std::uint8_t> blocks_;              // each once
  std::vector<std::vector<std::uint8_t>> set_symbols_;
};

// Compiled once, shared by threads.
class Regex {
 public:
  // Throws UserError naming `where` (file and field) and what in the pattern is not supported.
  static Regex from_oniguruma(std::string_view pattern, const std::string& where);
  // Of `text` (not empty) as it is.
  static Regex literal(std::string_view text, const std::string& where);

 private:
  friend class RegexMatcher;
  Regex(const Pattern& pattern, std::string_view shown, const std::string& where);

  std::shared_ptr<const SymbolTable> symbols_;
  std::shared_ptr<void> code_;
  bool has_jit_ = false;
};

// Scratch memory of one thread, and a text.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);

  // What find() looks at from now on: well-formed UTF-8 that outlives its use.
  void begin(std::string_view text);
  // The first match at or after byte `from`, where a character begins or the text ends; false when there is
  // none. Fast where `from` is not below that of the call before. Throws RunError when the pattern needs more
  // backtracking than is sane.
  bool find(std::size_t from, TextRange& match);

 private:
  // A place in the text, counted in bytes and in symbols.
  struct Place {
    std::size_t byte = 0;
    std::size_t symbol = 0;
  };
  void advance_to_symbol(Place& place, std::size_t symbol) const;

  std::shared_ptr<const SymbolTable> table_;
  std::shared_ptr<void> code_;
  bool has_jit_;
  std::shared_ptr<void> match_data_;
  std::shared_ptr<void> match_context_;
  std::shared_ptr<void> jit_stack_;
  std::string_view text_;
  std::unique_ptr<std::uint8_t[]> symbols_;  // of the text, count_
  std::size_t capacity_ = 0;
  std::size_t count_ = 0;
  Place place_;  // of the last `from`
  Place end_;    // of the last match
};

}  // namespace meshtrain
