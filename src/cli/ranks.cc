#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "launch/launch.h"
#include "train/mesh.h"

namespace meshtrain::cli {

void add_rank_arguments(CLI::App& command, RankArguments& arguments) {
  command
      .add_option("--ranks", arguments.ranks, "Ranks to start on this host; default: as many as the mesh has")
      ->check(whole_number(1, kMostRanks));
  command.add_option("--ranks-as", arguments.ranks_as, "How to start them")
      ->check(CLI::IsMember({"processes", "threads"}))
      ->capture_default_str();
}

Config load(const ConfigArguments& arguments, RankArguments& ranks) {
  Config config = load(arguments);
  const bool overridden = std::any_of(arguments.overrides.begin(), arguments.overrides.end(),
                                      [](const std::string& o) { return o.starts_with("mesh.dp"); });
  const bool run_folder = std::filesystem::exists(std::filesystem::path(arguments.path) / "config.toml");
  if (!run_folder || overridden) return config;
  if (ranks.ranks == 0 && !worker_environment()) ranks.ranks = ranks_of(config.mesh);
  config.mesh.dp = 0;
  return config;
}

Config with_ranks(const Config& config, std::int64_t asked) {
  return for_ranks(config, asked > 0 ? asked : least_ranks_of(config.mesh));
}

namespace {

RanksAs ranks_as(const RankArguments& arguments) {
  return arguments.ranks_as == "threads" ? RanksAs::kThreads : RanksAs::kProcesses;
}

Config with_threads(Config config, int threads) {
  if (config.machine.threads == 0) config.machine.threads = threads;
  return config;
}

}  // namespace

void run_on_ranks(const Config& config, const RankArguments& arguments,
                  const std::function<void(const Config& config, World& world)>& body) {
  const std::optional<WorkerEnvironment> worker = worker_environment();
  const Config meshed = worker ? for_ranks(config, worker->size) : with_ranks(config, arguments.ranks);
  std::optional<int> asked;
  if (!worker) asked = static_cast<int>(ranks_of(meshed.mesh));
  if (arguments.ranks > 0) asked = static_cast<int>(arguments.ranks);
  run_ranks(asked, ranks_as(arguments), meshed.mesh.engine, world_options(meshed),
            [&](World& world, int threads) { body(with_threads(meshed, threads), world); });
}

void run_restarting_on_ranks(const Config& config, const RankArguments& arguments, const RestartPolicy& policy,
                             const std::function<void(const Config& config, World& world)>& body,
                             const std::function<std::string()>& get_ready) {
  check_restartable(policy, ranks_as(arguments), config.mesh.engine);
  run_restarting(with_ranks(config, arguments.ranks), policy,
                 {.body = [&](const Attempt& attempt, World& world,
                              int threads) { body(with_threads(attempt.config, threads), world); },
                  .get_ready = get_ready});
}

}  // namespace meshtrain::cli
