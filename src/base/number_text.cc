#include "base/number_text.h"

#include <fmt/format.h>

namespace meshtrain {

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  const bool looks_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_whole ? text + ".0" : text;
}

}  // namespace meshtrain
