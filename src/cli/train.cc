#include <memory>
#include <utility>

#include "base/error.h"
#include "base/pause_point.h"
#include "base/shared_flag.h"
#include "cli/commands.h"
#include "train/run.h"
#include "train/run_attempts.h"
#include "train/run_report.h"

namespace meshtrain::cli {

void add_train(CLI::App& app) {
  struct Arguments {
    ConfigArguments config;
    RunOptions options;
    RankArguments ranks;
    RestartPolicy restarts;
    int interrupted_status = 0;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Trains a model as a config says");
  add_config_arguments(*command, arguments->config);
  CLI::Option* resume =
      command->add_flag("--resume", arguments->options.resume,
                        "Resume from the newest checkpoint in checkpoint.dir, if there is one");
  command->add_option("--resume-from", arguments->options.resume_from, "Resume from this checkpoint")
      ->excludes(resume);
  command
      ->add_option("--stop-at-step", arguments->options.stop_at_step,
                   "Save and stop after this step; the schedule is still the one for train.steps")
      ->check(whole_number(1));
  command->add_flag("--trace", arguments->options.trace,
                    "Write trace.json into the run folder: what each rank did when");
  add_rank_arguments(*command, arguments->ranks);
  command
      ->add_option("--max-restarts", arguments->restarts.most,
                   "When a rank is lost, restart from the newest checkpoint, at most this many times")
      ->check(whole_number(0));
  command->add_flag("--elastic", arguments->restarts.elastic,
                    "When ranks are lost, restart with the remaining ones and a smaller mesh.dp");
  command
      ->add_option(
          "--interrupted-status", arguments->interrupted_status,
          "Exit status of a run that a signal stopped before its end, so that a scheduler starts it again")
      ->check(whole_number(0, 255))
      ->capture_default_str();
  command->callback([arguments] {
    install_stop_handler();
    arguments->options.stop_requested = stop_requested;
    const std::unique_ptr<PausePoint> pause = PausePoint::from_environment();
    const Config config = load(arguments->config, arguments->ranks);
    RunOptions& options = arguments->options;
    SharedFlag interrupted;  // set by the ranks
    const auto train = [&](const Config& of_rank, World& world) {
      RunOptions own = options;
      if (pause) {
        own.at_phase = [&pause, rank = world.rank()](std::string_view phase, std::int64_t step) {
          pause->reach(phase, step, rank);
        };
      }
      if (run_training(of_rank, own, world) == RunOutcome::kInterrupted) interrupted.set();
    };
    try {
      if (arguments->restarts.asked()) {
        const RunAttempts attempts(config, options);
        run_restarting_on_ranks(config, arguments->ranks, arguments->restarts, train, [&] {
          RunAttempts::Next next = attempts.next();
          options = std::move(next.options);
          return next.from;
        });
      } else {
        run_on_ranks(config, arguments->ranks, train);
      }
    } catch (const RunError& error) {
      throw RunError(with_advice(error.what(), config));
    }
    if (interrupted.is_set() && arguments->interrupted_status != 0) {
      throw CLI::RuntimeError(arguments->interrupted_status);
    }
  });
}

}  // namespace meshtrain::cli
