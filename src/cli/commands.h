// The commands of the program: each adds itself to the parser, and runs when it was chosen. A command
// throws UserError (exit status 2) or RunError (1); main reports them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "train/config.h"

namespace meshtrain::cli {

void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_plan(CLI::App& app);
void add_bench(CLI::App& app);

// -s section.key=value, as often as it is given.
void add_overrides(CLI::App& command, std::vector<std::string>& overrides);

// CONFIG and its -s overrides, as several commands take them.
struct ConfigArguments {
  std::string path;  // a TOML file, or a run folder that holds config.toml
  std::vector<std::string> overrides;
};
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);
Config load(const ConfigArguments& arguments);

// Checks that an option's value is a whole number in [least, most].
CLI::Validator whole_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());

// True once Ctrl-C, SIGTERM or SIGUSR1 arrived. A second signal ends the process at once.
void install_stop_handler();
bool stop_requested();

}  // namespace meshtrain::cli
