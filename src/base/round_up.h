#pragma once

#include <cstdint>

namespace meshtrain {

// The smallest multiple of `unit` that is at least `value`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// How many pieces of at most `unit` make up `value`.
constexpr std::int64_t pieces(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}

}  // namespace meshtrain
