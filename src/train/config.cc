#include "train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/utf8_prefix.h"
#include "train/config_defaults.h"
#include "train/config_fields.h"
#include "train/config_source.h"
#include "train/config_unknown.h"
#include "train/config_validate.h"

namespace meshtrain {
namespace {

// Where a value was said: "run.toml, line 3" or "-s model.heads=4".
using Origin = std::string;

struct Assignment {
  const toml::node* node = nullptr;  // null: not said
  Origin origin;
};

// What the file and the overrides say, one entry a config_fields() entry. Owns the parsed text.
struct Assignments {
  std::vector<Assignment> of_field = std::vector<Assignment>(config_fields().size());
  std::vector<toml::table> documents;

  bool has(std::string_view full_name) const {
    const auto fields = config_fields();
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].full_name() == full_name) return of_field[i].node != nullptr;
    }
    check(false, "a key that is not in the table");
    return false;
  }
};

Origin line_of(const std::string& file, const toml::node& node) {
  return fmt::format("{}, line {}", file, node.source().begin.line);
}

bool known_section(std::string_view section) {
  return std::any_of(config_fields().begin(), config_fields().end(),
                     [&](const ConfigField& field) { return field.section == section; });
}

// Keys of earlier versions; config_synonyms.cc says what to write instead.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kRetiredKeys = {
    {{"train", "eval_batches"}}};

bool is_retired(std::string_view section, std::string_view key) {
  return std::find(kRetiredKeys.begin(), kRetiredKeys.end(), std::pair(section, key)) != kRetiredKeys.end();
}

std::size_t index_of_field(const Origin& origin, std::string_view section, std::string_view key) {
  if (!known_section(section)) throw_unknown_section(origin, section, key);
  const auto fields = config_fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].section == section && fields[i].key == key) return i;
  }
  throw_unknown_key(origin, section, key);
}

std::string_view first_key(const toml::table* section) {
  return section == nullptr || section->empty() ? "" : section->begin()->first.str();
}

void collect(const toml::table& document, const std::string& file, ConfigWriter writer,
             Assignments& assignments) {
  for (const auto& [section_key, section_node] : document) {
    const std::string_view section = section_key.str();
    const Origin section_origin = line_of(file, section_node);
    const toml::table* table = section_node.as_table();
    if (!known_section(section)) throw_unknown_section(section_origin, section, first_key(table));
    if (table == nullptr) {
      throw_user_error("{}: \"{}\" is a section: write [{}] on a line of its own, and its keys below.",
                       section_origin, section, section);
    }
    for (const auto& [key, node] : *table) {
      const Origin origin = line_of(file, node);
      if (writer == ConfigWriter::kRun && is_retired(section, key.str())) continue;
      assignments.of_field[index_of_field(origin, section, key.str())] = {&node, origin};
    }
  }
}

// The value of an override: what TOML reads there, or a bare word where the key takes text. The result
// holds it under "value"; nullopt: neither.
std::optional<toml::table> override_value(const ConfigField& field, const std::string& text) {
  toml::table bare;
  bare.insert("value", text);
  try {
    toml::table parsed = toml::parse("value = " + text);
    // "-s data.train=2024" names a file.
    if (field.type != "string" || parsed["value"].is_string()) return parsed;
  } catch (const toml::parse_error&) {  // a bare word, if anything
  }
  if (!field.takes_text) return std::nullopt;
  return bare;
}

bool is_utf8(const std::string& text) {
  try {
    return toml::parse("# " + text).empty();
  } catch (const toml::parse_error&) {
    return false;
  }
}

void collect_override(const std::string& text, Assignments& assignments) {
  const Origin origin = "-s " + shortened(text);
  const std::size_t equals = text.find('=');
  const std::size_t dot = text.find('.');
  // One line of valid text, so that config.toml can say what was said here.
  if (text.find_first_of("\n\r") != std::string::npos || !is_utf8(text)) {
    throw_user_error("{}: an override is one line of UTF-8 text without control characters.", origin);
  }
  if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 >= equals) {
    throw_bad_override(text);
  }
  const std::size_t index =
      index_of_field(origin, std::string_view(text).substr(0, dot), text.substr(dot + 1, equals - dot - 1));
  const ConfigField& field = config_fields()[index];
  const bool is_empty = text.find_first_not_of(" \t", equals + 1) == std::string::npos;
  if (is_empty && !field.may_be_empty) throw_bad_override(text);
  std::optional<toml::table> value = override_value(field, text.substr(equals + 1));
  if (!value) {
    throw_user_error("{}: {} expects {}, found {}.", origin, field.full_name(), with_article(field.type),
                     shortened(text.substr(equals + 1)));
  }
  assignments.documents.push_back(std::move(*value));
  assignments.of_field[index] = {assignments.documents.back().get("value"), origin};
}

// Puts in front where the key was said that a complaint begins with.
std::string located(const std::string& complaint, const std::string& file, const Assignments& said) {
  const std::string key = complaint.substr(0, complaint.find(' '));
  for (std::size_t i = 0; i < said.of_field.size(); ++i) {
    if (said.of_field[i].node != nullptr && config_fields()[i].full_name() == key) {
      return said.of_field[i].origin + ": " + complaint;
    }
  }
  return file + ": " + complaint;
}

std::string read_config_file(const std::string& path) {
  constexpr std::streamsize kMostBytes = 1 << 20;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(kMostBytes), '\0');
  if (file) file.read(text.data(), kMostBytes);
  if (!file.is_open() || file.bad()) {
    throw_user_error("cannot read the config {}: {}.", path, errno != 0 ? std::strerror(errno) : "not a file");
  }
  if (!file.eof()) throw_user_error("{} is larger than a mebibyte: this is not a config.", path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Config parse_config(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                    ConfigWriter writer) {
  Assignments said;
  said.documents.reserve(overrides.size() + 1);  // assignments point into it
  try {
    said.documents.push_back(toml::parse(text, name));
  } catch (const toml::parse_error& error) {
    const bool of_model = name.ends_with(".json") || name.ends_with(".safetensors");
    throw_user_error("{}, line {}: this is not TOML: {}{}", name, error.source().begin.line,
                     error.description(),
                     of_model ? ". For a Hugging Face model, name the folder that the file is in" : "");
  }
  collect(said.documents[0], name, writer, said);
  for (const std::string& text_of_override : overrides) collect_override(text_of_override, said);

  Config config;
  const SaidKey is_said = [&](std::string_view key) { return said.has(key); };
  std::optional<ModelDescription> source;
  const auto fields = config_fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {  // model.from and the preset come first in the table
    const Assignment& assignment = said.of_field[i];
    if (assignment.node == nullptr) continue;
    const std::string problem = fields[i].set(config, *assignment.node);
    if (!problem.empty()) throw_user_error("{}: {} {}.", assignment.origin, fields[i].full_name(), problem);
    if (fields[i].full_name() == "model.from") source = source_of_sizes(config, is_said, assignment.origin);
  }
  try {
    if (source) check_source(config, *source, is_said);
    fill_in_defaults(config, is_said);
    validate_but_vocabulary(config);
  } catch (const UserError& error) {
    throw UserError(located(error.what(), name, said));
  }
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides, ConfigWriter writer) {
  return parse_config(read_config_file(path), path, overrides, writer);
}

}  // namespace meshtrain
