#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace meshtrain {

// At most `most` bytes of `text`, cut where a UTF-8 character begins.
inline std::string_view utf8_prefix(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80) --most;
  return text.substr(0, most);
}

// As much of what a user wrote as a message repeats: `text`, or its beginning and "…".
inline std::string shortened(std::string_view text, std::size_t most = 60) {
  return text.size() > most ? std::string(utf8_prefix(text, most)) + "…" : std::string(text);
}

}  // namespace meshtrain
