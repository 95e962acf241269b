// The kinds of key that the table in config_fields.cc is made of.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/home_path.h"
#include "base/nearest.h"
#include "train/config_fields.h"
#include "train/config_value.h"

namespace meshtrain {

template <class T>
constexpr std::string_view kTypeName{};
template <>
constexpr std::string_view kTypeName<std::int64_t> = "integer";
template <>
constexpr std::string_view kTypeName<std::uint64_t> = "integer";
template <>
constexpr std::string_view kTypeName<double> = "number";
template <>
constexpr std::string_view kTypeName<bool> = "true or false";
template <>
constexpr std::string_view kTypeName<std::string> = "string";
template <>
constexpr std::string_view kTypeName<std::array<double, 2>> = "[number, number]";
template <>
constexpr std::string_view kTypeName<std::vector<std::int64_t>> = "[integer, …]";

// The way from a Config to a member of a member of it, for const and other ones alike.
template <class... Members>
auto at(Members... members) {
  return [members...](auto& config) -> auto& {
    return (config.*....*members);
  };
}

// A key of a plain type; `access` comes from at().
template <class Access>
ConfigField field(std::string_view section, std::string_view key, Access access, std::string_view meaning,
                  std::string_view default_text = "") {
  using Value = std::decay_t<decltype(access(std::declval<Config&>()))>;
  ConfigField result;
  result.section = section;
  result.key = key;
  result.type = kTypeName<Value>;
  result.meaning = meaning;
  result.default_text = default_text;
  result.takes_text = std::is_same_v<Value, std::string>;
  result.set = [access](Config& config, const toml::node& node) { return store(access(config), node); };
  result.get = [access](const Config& config) { return to_text(access(config)); };
  return result;
}

// A key that is a path, or that `expand` finds one in: "~" at its start is the home folder.
template <class Access>
ConfigField path_field(std::string_view section, std::string_view key, Access access, std::string_view meaning,
                       std::string_view default_text = "",
                       std::string (*expand)(const std::string&) = expand_home) {
  ConfigField result = field(section, key, access, meaning, default_text);
  result.set = [access, expand](Config& config, const toml::node& node) -> std::string {
    std::string& out = access(config);
    if (std::string problem = store(out, node); !problem.empty()) return problem;
    try {
      out = expand(out);
      return "";
    } catch (const UserError& error) {
      return fmt::format("is {}", error.what());
    }
  };
  return result;
}

template <class Access>
ConfigField llama_field(std::string_view key, Access access, std::string_view meaning,
                        std::string_view default_text = "") {
  ConfigField result = field("model", key, access, meaning, default_text);
  result.llama_only = true;
  return result;
}

inline std::string checked_choice(const toml::node& node, const std::vector<std::string>& names) {
  const std::string expected = fmt::format("one of {}", fmt::join(names, ", "));
  const auto* text = node.as_string();
  if (text == nullptr) return mismatch(expected, node);
  if (std::find(names.begin(), names.end(), text->get()) != names.end()) return "";
  return mismatch(expected, node) + nearest_hint(text->get(), names);
}

inline std::string choice_type(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) parts.push_back(quoted(name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// A key whose value is one of a few names, kept as a string.
template <class Access>
ConfigField choice(std::string_view section, std::string_view key, const std::vector<std::string>& names,
                   Access access, std::string_view meaning) {
  ConfigField result = field(section, key, access, meaning);
  result.type = choice_type(names);
  result.set = [access, names](Config& config, const toml::node& node) {
    std::string problem = checked_choice(node, names);
    return problem.empty() ? store(access(config), node) : problem;
  };
  return result;
}

// The same, kept as an enumeration that name_of() names.
template <class Access, class Value>
ConfigField enumeration(std::string_view section, std::string_view key, const std::vector<Value>& values,
                        Access access, std::string_view meaning, std::string_view default_text = "") {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (const Value value : values) names.emplace_back(name_of(value));
  ConfigField result;
  result.section = section;
  result.key = key;
  result.type = choice_type(names);
  result.meaning = meaning;
  result.default_text = default_text;
  result.takes_text = true;
  result.set = [access, names, values](Config& config, const toml::node& node) {
    std::string problem = checked_choice(node, names);
    if (!problem.empty()) return problem;
    const auto at = std::find(names.begin(), names.end(), node.as_string()->get()) - names.begin();
    access(config) = values[static_cast<std::size_t>(at)];
    return problem;
  };
  result.get = [access](const Config& config) { return quoted(name_of(access(config))); };
  return result;
}

}  // namespace meshtrain
