// The commands of the program: each adds itself to the parser, and runs when it was chosen. A command
// throws UserError (exit status 2) or RunError (1); main reports them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/restarts.h"
#include "train/config.h"

namespace meshtrain::cli {

void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_plan(CLI::App& app);
void add_verify(CLI::App& app);
void add_bench(CLI::App& app);
void add_ckpt(CLI::App& app);

// -s section.key=value, as often as it is given.
void add_overrides(CLI::App& command, std::vector<std::string>& overrides);

// CONFIG and its -s overrides, as several commands take them.
struct ConfigArguments {
  std::string path;  // a TOML file, a run folder that holds config.toml, or a Hugging Face folder
  std::vector<std::string> overrides;
};
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);
Config load(const ConfigArguments& arguments);

// --ranks N and --ranks-as, as commands that start ranks take them.
inline constexpr std::int64_t kMostRanks = 4096;
struct RankArguments {
  std::int64_t ranks = 0;  // 0: not said
  std::string ranks_as = "processes";
};
void add_rank_arguments(CLI::App& command, RankArguments& arguments);

// load() for a command that takes ranks. The mesh.dp of a run folder is what that run had, not what this one
// must have: it counts where neither an override, nor --ranks, nor a launcher says otherwise.
Config load(const ConfigArguments& config, RankArguments& ranks);

// The config with its mesh filled in: for `asked` ranks, or those that the mesh comes to where that is 0.
Config with_ranks(const Config& config, std::int64_t asked);

// Runs `body` on every rank that the config's mesh and the arguments come to, or as the rank that a launcher
// made of this process. The config it gets has its mesh and its threads filled in.
void run_on_ranks(const Config& config, const RankArguments& arguments,
                  const std::function<void(const Config& config, World& world)>& body);

// The same for a run that is started again when a rank is lost (launch/restarts.h). `get_ready`: called in this
// process before every restart; returns where it goes on.
void run_restarting_on_ranks(const Config& config, const RankArguments& arguments, const RestartPolicy& policy,
                             const std::function<void(const Config& config, World& world)>& body,
                             const std::function<std::string()>& get_ready);

// Checks that an option's value is a whole number in [least, most].
CLI::Validator whole_number(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());

// True once Ctrl-C, SIGTERM or SIGUSR1 arrived. A second signal removes temporary files and ends the process at
// once.
void install_stop_handler();
bool stop_requested();

}  // namespace meshtrain::cli
