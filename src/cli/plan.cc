#include "plan/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {

void add_plan(CLI::App& app) {
  struct Arguments {
    ConfigArguments config;
    RankArguments ranks;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("plan", "What a run would cost: memory to the byte, FLOPs by layer");
  add_config_arguments(*command, arguments->config);
  command->add_option("--ranks", arguments->ranks.ranks, "Ranks of the run, where mesh.dp leaves it open")
      ->check(whole_number(1, kMostRanks));
  command->add_flag("--json", arguments->json, "For programs");
  command->callback([arguments] {
    const Config loaded = load(arguments->config, arguments->ranks);
    const Config config = with_vocabulary(with_ranks(loaded, arguments->ranks.ranks));
    const Plan plan = make_plan(config);
    const std::string text = arguments->json ? to_json(plan, config).dump(2) + "\n" : to_text(plan, config);
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

}  // namespace meshtrain::cli
