// The one table of config keys. Reading, writing and docs/config.md all follow it, so a new key is one
// line here.
#pragma once

#include <toml++/toml.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "train/config.h"

namespace meshtrain {

struct ConfigField {
  std::string_view section;
  std::string_view key;
  std::string type;  // as docs/config.md says it
  std::string_view meaning;
  std::string_view default_text;  // where the default depends on other keys; else that of Config{}
  bool llama_only = false;
  // Whether a bare word is a value: -s optimizer.name=sgd.
  bool takes_text = false;
  // Whether no value is one: -s data.valid=.
  bool may_be_empty = false;
  // Stores the value; returns "" or what is wrong with it ("expects an integer, found the string \"x\"").
  std::function<std::string(Config&, const toml::node&)> set;
  // The value as TOML.
  std::function<std::string(const Config&)> get;

  std::string full_name() const { return std::string(section) + "." + std::string(key); }
};

// In the order in which to_toml and the reference list them; a section's keys stand together.
std::span<const ConfigField> config_fields();

// "an integer", "a string", "one of "a", "b""; "true or false" as it is.
std::string with_article(const std::string& type);

}  // namespace meshtrain
