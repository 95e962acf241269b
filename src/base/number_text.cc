#include "base/number_text.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace meshtrain {

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool looks_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_whole ? text + ".0" : text;
}

double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace meshtrain
