// The byte-level alphabet of GPT-2 (encoder.py, bytes_to_unicode): every byte as one printable character,
// which is how tokenizer.json writes tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace meshtrain {

// The bytes that `token` (well-formed UTF-8) writes; none when a character is outside the alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);
// The inverse.
std::string bytes_to_byte_level(std::string_view bytes);

}  // namespace meshtrain
