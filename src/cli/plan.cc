#include "plan/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/plan_checkpoint.h"
#include "plan/plan_trace.h"
#include "plan/timeline_text.h"
#include "telemetry/progress.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

int columns_of_output() {
  constexpr int kColumnsOfFile = 120;
  const ProgressOptions output = progress_options_for(stdout);
  return output.terminal ? static_cast<int>(output.width()) : kColumnsOfFile;
}

}  // namespace

void add_plan(CLI::App& app) {
  struct Arguments {
    ConfigArguments config;
    RankArguments ranks;
    bool json = false;
    bool timeline = false;
    std::string trace;
    CheckpointArguments checkpoint;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "What a run would cost: memory to the byte, bytes sent, FLOPs by layer, the pipeline's timeline");
  add_config_arguments(*command, arguments->config);
  command->add_option("--ranks", arguments->ranks.ranks, "Ranks of the run; default: as many as the mesh has")
      ->check(whole_number(1));
  CLI::Option* as_json = command->add_flag("--json", arguments->json, "Print JSON");
  CLI::Option* timeline =
      command->add_flag("--timeline", arguments->timeline, "Draw the pipeline instead, one row per stage")
          ->excludes(as_json);
  const CLI::Option* trace =
      command
          ->add_option("--trace", arguments->trace,
                       "Also write one step with modelled times as a Chrome trace, one rank per stage")
          ->type_name("FILE");
  add_checkpoint_arguments(*command, arguments->checkpoint)->excludes(timeline);
  command->callback([arguments, trace] {
    if (trace->count() > 0) check_output_file("--trace", arguments->trace);
    const Config loaded = load(arguments->config, arguments->ranks);
    const Config config = with_vocabulary(with_ranks(loaded, arguments->ranks.ranks));
    const Plan plan = make_plan(config);
    if (!arguments->trace.empty()) {
      const TraceRates rates = trace_rates(config);
      write_plan_trace(config, rates, arguments->trace);
      notice("{} is a step at {}", arguments->trace, to_string(rates, config));
    }
    std::string text = arguments->timeline ? timeline_text(plan, config, columns_of_output())
                       : arguments->json   ? ""
                                           : to_text(plan, config);
    std::optional<CheckpointPlan> checkpoint;
    if (arguments->checkpoint.asked) checkpoint = plan_checkpoints(config, arguments->checkpoint);
    if (arguments->json) {
      nlohmann::json json = to_json(plan, config);
      if (checkpoint) json["checkpoint"] = to_json(*checkpoint, config);
      text = json.dump(2) + "\n";
    } else if (checkpoint) {
      text += "\n" + to_text(*checkpoint, config);
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
  });
}

}  // namespace meshtrain::cli
