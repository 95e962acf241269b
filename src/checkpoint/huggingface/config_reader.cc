#include "checkpoint/huggingface/config_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 80) + "…" : text;
}

}  // namespace

HfFieldReader::HfFieldReader(const Json& object, const std::string& path, std::string inside)
    : object_(object), path_(path), inside_(std::move(inside)) {
  if (!object.is_object()) {
    throw_user_error("{}: {} is not a JSON object.", path, inside_.empty() ? "the text" : inside_);
  }
}

bool HfFieldReader::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

bool HfFieldReader::says_null(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

const Json& HfFieldReader::get(const char* key) const {
  return object_.at(key);
}

std::string HfFieldReader::name_of(const char* key) const {
  return inside_.empty() ? key : inside_ + "." + key;
}

void HfFieldReader::refuse(const char* key, std::string_view why) const {
  throw_user_error("{}: {} = {}: {}.", path_, name_of(key), has(key) ? shown(get(key)) : "null", why);
}

std::int64_t HfFieldReader::size(const char* key, std::int64_t otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = get(key);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (!value.is_number_integer() || value < 1 || value > kMost) {
    refuse(key, fmt::format("expects a whole number from 1 to {}", kMost));
  }
  return value.get<std::int64_t>();
}

double HfFieldReader::number(const char* key, double otherwise) const {
  if (!has(key)) return otherwise;
  const Json& value = get(key);
  if (!value.is_number()) refuse(key, "expects a number");
  return value.get<double>();
}

bool HfFieldReader::flag(const char* key, bool otherwise) const {
  if (says_null(key)) return false;  // as for the library
  if (!has(key)) return otherwise;
  if (!get(key).is_boolean()) refuse(key, "expects true or false");
  return get(key).get<bool>();
}

std::string HfFieldReader::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!get(key).is_string()) refuse(key, "expects a string");
  return get(key).get<std::string>();
}

void HfFieldReader::require_there(const char* key) const {
  if (!has(key)) throw_user_error("{}: {} is missing.", path_, name_of(key));
}

std::int64_t HfFieldReader::required_size(const char* key) const {
  require_there(key);
  return size(key, 0);
}

double HfFieldReader::required_number(const char* key) const {
  require_there(key);
  return number(key, 0.0);
}

void HfFieldReader::require_text(const char* key, const std::string& otherwise,
                                 std::initializer_list<std::string_view> known, std::string_view why) const {
  const std::string value = text(key, otherwise);
  if (std::find(known.begin(), known.end(), value) == known.end()) refuse(key, why);
}

void HfFieldReader::require_flag(const char* key, bool otherwise, bool value, std::string_view why) const {
  if (flag(key, otherwise) != value) refuse(key, why);
}

void HfFieldReader::require_absent(const char* key, std::string_view why) const {
  if (has(key)) refuse(key, why);
}

}  // namespace meshtrain
