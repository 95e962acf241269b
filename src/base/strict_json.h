// JSON of files that others may have made, or damaged.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace meshtrain {

// No such file is nested deeper by its own rules, and what walks through values recurses as deep as they are.
inline constexpr int kDeepestJson = 64;

class StrictJsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Parses. Throws StrictJsonError saying in a few words why it cannot: the text is no JSON, or is with a NUL or
// a byte order mark (which the library below takes for its end and for nothing), is nested deeper than
// kDeepestJson, or has an object with a key twice, of which readers would differ in which they see.
nlohmann::json parse_strictly(std::string_view text);

// A number of elements, bytes or steps: a whole one from 0 to 2^63 - 1; nullopt for anything else.
std::optional<std::int64_t> size_from(const nlohmann::json& value);

}  // namespace meshtrain
