#include "train/config_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/number_text.h"
#include "base/utf8_prefix.h"

namespace meshtrain {
namespace {

std::string describe(const toml::node& node) {
  if (const auto* text = node.as_string()) return fmt::format("the string {}", quoted(shortened(text->get())));
  if (const auto* integer = node.as_integer()) return fmt::format("the integer {}", integer->get());
  if (const auto* number = node.as_floating_point())
    return fmt::format("the number {}", to_text(number->get()));
  if (const auto* boolean = node.as_boolean()) return to_text(boolean->get());
  if (node.is_array()) return fmt::format("an array of {}", node.as_array()->size());
  return node.is_table() ? "a table" : "a date or time";
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\u{:04X}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string to_text(const std::string& value) {
  return quoted(value);
}
std::string to_text(std::int64_t value) {
  return fmt::format("{}", value);
}
std::string to_text(std::uint64_t value) {
  return fmt::format("{}", value);
}
std::string to_text(bool value) {
  return value ? "true" : "false";
}
std::string to_text(double value) {
  return number_text(value);
}
std::string to_text(const std::array<double, 2>& value) {
  return fmt::format("[{}, {}]", to_text(value[0]), to_text(value[1]));
}
std::string to_text(const std::vector<std::int64_t>& value) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}

std::string mismatch(std::string_view expected, const toml::node& node) {
  return fmt::format("expects {}, found {}", expected, describe(node));
}

std::string store(std::int64_t& out, const toml::node& node) {
  const auto* value = node.as_integer();
  if (value == nullptr) return mismatch("an integer", node);
  out = value->get();
  return "";
}

std::string store(std::uint64_t& out, const toml::node& node) {
  const auto* value = node.as_integer();
  if (value == nullptr || value->get() < 0) return mismatch("an integer, 0 or above", node);
  out = static_cast<std::uint64_t>(value->get());
  return "";
}

std::optional<double> number(const toml::node& node) {
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_integer()) return static_cast<double>(value->get());
  return std::nullopt;
}

std::string store(double& out, const toml::node& node) {
  const std::optional<double> value = number(node);
  if (!value) return mismatch("a number", node);
  out = *value;
  return "";
}

std::string store(bool& out, const toml::node& node) {
  const auto* value = node.as_boolean();
  if (value == nullptr) return mismatch("true or false", node);
  out = value->get();
  return "";
}

std::string store(std::string& out, const toml::node& node) {
  const auto* value = node.as_string();
  if (value == nullptr) return mismatch("a string in quotes", node);
  if (value->get().find('\0') != std::string::npos)
    return "has a NUL character, which no name or path may have";
  out = value->get();
  return "";
}

std::string store(std::array<double, 2>& out, const toml::node& node) {
  const auto* array = node.as_array();
  if (array == nullptr) return mismatch("two numbers in brackets, as in [0.9, 0.95]", node);
  if (array->size() != out.size()) return mismatch("an array of two numbers, as in [0.9, 0.95]", node);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::optional<double> value = number((*array)[i]);
    if (!value) return mismatch("two numbers", (*array)[i]);
    out[i] = *value;
  }
  return "";
}

std::string store(std::vector<std::int64_t>& out, const toml::node& node) {
  const auto* array = node.as_array();
  if (array == nullptr) return mismatch("integers in brackets, as in [6, 6]", node);
  std::vector<std::int64_t> values;
  for (const toml::node& element : *array) {
    const auto* value = element.as_integer();
    if (value == nullptr) return mismatch("integers only", element);
    values.push_back(value->get());
  }
  out = std::move(values);
  return "";
}

}  // namespace meshtrain
