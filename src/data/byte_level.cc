#include "data/byte_level.h"

#include <array>

#include "data/unicode.h"

namespace meshtrain {
namespace {

constexpr bool printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable bytes stand for themselves; the 68 others are U+0100 and up, in order.
struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::uint8_t, 68> other{};

  constexpr Alphabet() {
    std::size_t count = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (printable(byte)) {
        character[byte] = byte;
      } else {
        other[count] = static_cast<std::uint8_t>(byte);
        character[byte] = static_cast<char32_t>(256 + count++);
      }
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    at += point.length;
    if (point.value < 256 && printable(point.value)) {
      bytes.push_back(static_cast<char>(point.value));
    } else if (point.value >= 256 && point.value < 256 + kAlphabet.other.size()) {
      bytes.push_back(static_cast<char>(kAlphabet.other[point.value - 256]));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string bytes_to_byte_level(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) append_utf8(kAlphabet.character[static_cast<unsigned char>(c)], token);
  return token;
}

}  // namespace meshtrain
