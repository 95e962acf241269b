// Limits of single numbers in a config. Each throws UserError naming the key, its value and the limits.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace meshtrain {

inline void require_between(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw_user_error("{} = {} is not possible: it must be between {} and {}.", key, value, least, most);
  }
}

// Of what a float holds.
inline void require_finite_from(std::string_view key, double value, double least) {
  if (!(value >= least) || !std::isfinite(static_cast<float>(value))) {
    throw_user_error("{} = {} is not possible: it must be a finite fp32 number, {} or above.", key, value,
                     least);
  }
}

}  // namespace meshtrain
