#include "base/strict_json.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "base/json_reason.h"

namespace meshtrain {

using Json = nlohmann::json;

Json parse_strictly(std::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepestJson) throw StrictJsonError(fmt::format("it is nested deeper than {}", kDeepestJson));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw StrictJsonError(fmt::format("it has the key \"{}\" twice", value.get<std::string>()));
    }
    return true;
  };
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos)
    throw StrictJsonError(fmt::format("it has a NUL byte at position {}", at));
  if (text.starts_with("\xEF\xBB\xBF")) throw StrictJsonError("it begins with a byte order mark");
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    throw StrictJsonError(json_reason(error));
  }
}

std::optional<std::int64_t> size_from(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  // Of what was parsed only negative numbers are signed.
  if (!value.is_number_unsigned()) {
    const auto number = value.get<std::int64_t>();
    return number < 0 ? std::nullopt : std::optional(number);
  }
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace meshtrain
