#include "train/config_unknown.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "base/utf8_prefix.h"
#include "train/config_fields.h"
#include "train/config_synonyms.h"

namespace meshtrain {
namespace {

std::vector<std::string> sections() {
  std::vector<std::string> names;
  for (const ConfigField& field : config_fields()) {
    if (names.empty() || names.back() != field.section) names.emplace_back(field.section);
  }
  return names;
}

// "; the key is train.steps", "; dropout is not in this version".
std::string because(const std::string& meaning) {
  return is_one_key(meaning) ? "; the key is " + meaning : "; " + meaning;
}

// The nearest spelling, the key's own section before others.
std::string nearest_key(std::string_view section, std::string_view key) {
  for (const bool own : {true, false}) {
    std::vector<std::string> keys;
    std::vector<std::string> full_names;
    for (const ConfigField& field : config_fields()) {
      if ((field.section == section) != own) continue;
      keys.emplace_back(field.key);
      full_names.push_back(field.full_name());
    }
    const std::string best = nearest(key, keys);
    if (best.empty()) continue;
    return full_names[static_cast<std::size_t>(std::find(keys.begin(), keys.end(), best) - keys.begin())];
  }
  return "";
}

std::string keys_of(std::string_view section) {
  std::vector<std::string_view> keys;
  for (const ConfigField& field : config_fields()) {
    if (field.section == section) keys.push_back(field.key);
  }
  return fmt::format("{}", fmt::join(keys, ", "));
}

std::string meaning_in(std::string_view section, std::string_view key) {
  const std::string_view qualified = config_advice(fmt::format("{}.{}", section, key));
  return qualified.empty() ? meaning_of_name(key) : std::string(qualified);
}

}  // namespace

std::string meaning_of_name(std::string_view name) {
  std::vector<std::string> same;
  for (const ConfigField& field : config_fields()) {
    if (edit_distance(field.key, name) == 0 || field.full_name() == name) same.push_back(field.full_name());
  }
  if (same.size() > 1) return fmt::format("there are {}", fmt::join(same, " and "));
  if (!same.empty()) return same.front();
  return std::string(config_advice(name));
}

bool is_one_key(std::string_view meaning) {
  return !meaning.empty() && meaning.find(' ') == std::string_view::npos;
}

std::string subject_of(std::string_view meaning) {
  for (const std::string_view start : {"the key is ", "there are "}) {
    if (meaning.starts_with(start)) meaning.remove_prefix(start.size());
  }
  const std::string_view word = meaning.substr(0, meaning.find_first_of(" ,;:"));
  for (const ConfigField& field : config_fields()) {
    if (field.full_name() == word) return field.full_name();
  }
  return "";
}

void throw_unknown_key(std::string_view origin, std::string_view section, std::string_view key) {
  std::string hint;
  if (const std::string meaning = meaning_in(section, key); !meaning.empty()) {
    hint = because(meaning);
  } else if (const std::string near = nearest_key(section, key); !near.empty()) {
    hint = "; the nearest known key is " + near;
  } else if (const std::string_view advice = nearest_config_advice(key); !advice.empty()) {
    hint = because(std::string(advice));
  } else {
    hint = fmt::format("; [{}] has {}", section, keys_of(section));
  }
  throw_user_error("{}: unknown key {}.{}{}. docs/config.md lists every key.", origin, section, shortened(key),
                   hint);
}

void throw_unknown_section(std::string_view origin, std::string_view section, std::string_view key) {
  if (key.empty()) {
    if (const std::string meaning = meaning_of_name(section); !meaning.empty()) {
      throw_user_error("{}: \"{}\" stands outside of any section{}.", origin, shortened(section),
                       because(meaning));
    }
  }
  const std::vector<std::string> names = sections();
  const std::string near = nearest(section, names);
  std::string hint;
  if (!near.empty()) {
    hint = fmt::format("; the nearest known one is [{}]", near);
  } else if (const std::string meaning = meaning_in(section, key); !meaning.empty()) {
    hint = because(meaning);
  }
  throw_user_error("{}: unknown section [{}]{}. Sections: {}.", origin, shortened(section), hint,
                   fmt::join(names, ", "));
}

void throw_bad_override(std::string_view text) {
  const std::string origin = "-s " + shortened(text);
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  for (const ConfigField& field : config_fields()) {
    if (field.full_name() != name) continue;
    throw_user_error("{0}: the value is missing: write `-s {1}=VALUE`, where VALUE is {2}.", origin,
                     field.full_name(), with_article(field.type));
  }
  const std::string meaning = name.find('.') == std::string_view::npos ? meaning_of_name(name) : "";
  if (is_one_key(meaning)) {
    throw_user_error("{}: the section is missing: write `-s {}={}`.", origin, meaning,
                     value.empty() ? "VALUE" : shortened(value));
  }
  throw_user_error("{}: an override has the form -s section.key=value, as in -s optimizer.lr=1e-3{}.", origin,
                   meaning.empty() ? "" : because(meaning));
}

}  // namespace meshtrain
