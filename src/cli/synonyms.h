// What other programs call our commands and options.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::cli {

struct Synonym {
  std::vector<std::string_view> names;  // lower case, with '-'; options without dashes in front
  // Commands: "train", "ckpt import", or with options. Options: of several, those of the command at hand count.
  std::vector<std::string_view> meanings;
};

std::span<const Synonym> command_synonyms();
std::span<const Synonym> option_synonyms();

// "; here it is `meshtrain generate`", "; the nearest is eval", or empty. `words`: what stands before the name,
// "meshtrain bench".
std::string command_hint(std::string_view words, std::string_view name, std::span<const std::string> commands);

// "; the nearest is --resume", "; it is a key of the config: `-s optimizer.lr=3e-4`", or empty. `option`: as it
// was written, "--lr" or "--lr=3e-4".
std::string option_hint(const CLI::App& command, std::string_view option);

// The same of an argument that looks like an override without its -s, "optimizer.lr=3e-4".
std::string argument_hint(const CLI::App& command, std::string_view argument);

}  // namespace meshtrain::cli
