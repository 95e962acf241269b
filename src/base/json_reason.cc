#include "base/json_reason.h"

#include "base/utf8_prefix.h"

namespace meshtrain {

std::string json_reason(const nlohmann::json::exception& error) {
  constexpr std::size_t kLongest = 140;
  std::string what = error.what();
  std::size_t begin = what.find("line ");
  if (begin == std::string::npos) {
    begin = what.find("] ");
    begin = begin == std::string::npos ? 0 : begin + 2;
  }
  what.erase(0, begin);
  // What it read may be no UTF-8, which neither a terminal nor JSON takes.
  const std::string quoted =
      nlohmann::json(what).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  what = nlohmann::json::parse(quoted).get<std::string>();
  if (what.size() > kLongest) what = std::string(utf8_prefix(what, kLongest)) + "…";
  return what;
}

}  // namespace meshtrain
