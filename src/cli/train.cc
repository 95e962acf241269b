#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "train/run.h"

namespace meshtrain::cli {

void add_train(CLI::App& app) {
  struct Arguments {
    ConfigArguments config;
    RunOptions options;
    std::int64_t ranks = 1;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Trains a model as a config says");
  add_config_arguments(*command, arguments->config);
  command->add_flag("--resume", arguments->options.resume,
                    "Go on from the newest checkpoint in checkpoint.dir, if there is one");
  command->add_option("--resume-from", arguments->options.resume_from, "Go on from this checkpoint");
  command
      ->add_option("--stop-at-step", arguments->options.stop_at_step,
                   "Save and stop after this step; the schedule stays that of train.steps")
      ->check(whole_number(1));
  command->add_option("--ranks", arguments->ranks, "Ranks to train on; this version knows one")
      ->capture_default_str();
  command->callback([arguments] {
    if (arguments->ranks != 1) {
      throw_user_error(
          "--ranks {}: this version trains on one rank, on all cores of this machine; leave it out.",
          arguments->ranks);
    }
    install_stop_handler();
    arguments->options.stop_requested = stop_requested;
    run_training(load(arguments->config), arguments->options);
  });
}

}  // namespace meshtrain::cli
