// The little of Unicode that tokenizers need. Classes of characters, and which of them are normalized, are
// those of the Hugging Face tokenizers library (data/unicode_data.h), whatever Unicode version an installed
// library has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshtrain {

// `text` itself when it is well-formed UTF-8, else a copy in `storage` where each maximal ill-formed part
// is one U+FFFD (Unicode 14, section 3.9; what Rust's from_utf8_lossy and Python's errors="replace" do).
std::string_view valid_utf8(std::string_view text, std::string& storage);

// Where the first ill-formed part of `text` begins; text.size() where there is none.
std::size_t well_formed_until(std::string_view text);
// How many bytes at the end of `text` begin a character that further bytes may complete: 0 to 3.
std::size_t unfinished_bytes(std::string_view text);

struct CodePoint {
  char32_t value;
  std::size_t length;  // bytes
};
// The code point that starts at text[at], at < text.size(); `text` is well-formed UTF-8.
CodePoint code_point_at(std::string_view text, std::size_t at);
// The one that ends before text[end], end > 0.
CodePoint code_point_before(std::string_view text, std::size_t end);
void append_utf8(char32_t value, std::string& text);

bool is_space(char32_t value);   // property White_Space
bool is_letter(char32_t value);  // general category L
bool is_number(char32_t value);  // general category N, also of later characters (Rust's char::is_numeric)
bool is_word(char32_t value);    // \w of Unicode Technical Standard 18, annex C

enum class Normalization : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
// `text` (well-formed) itself when it is known to be in the form already, else its normal form in `storage`.
std::string_view normalize(std::string_view text, Normalization form, std::string& storage);

}  // namespace meshtrain
