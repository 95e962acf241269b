#include "cli/model_arguments.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/checkpoint_folder.h"
#include "cli/commands.h"
#include "train/checkpointing.h"

namespace meshtrain::cli {

void add_model_arguments(CLI::App& command, ModelArguments& arguments) {
  command.add_option("MODEL", arguments.where, "A config (TOML), a run folder, or a checkpoint")->required();
  command.add_option("--checkpoint", arguments.checkpoint, "Instead of the newest checkpoint");
  add_overrides(command, arguments.overrides);
}

TrainedModel open_model(const ModelArguments& arguments) {
  const bool is_folder = std::filesystem::is_directory(arguments.where);
  if (!is_folder && !std::filesystem::exists(arguments.where)) {
    throw_user_error("{} does not exist: name a config (TOML), a run folder or a checkpoint", arguments.where);
  }
  std::string checkpoint_dir = arguments.where;
  std::optional<Config> config;
  if (!is_folder) {
    config = load_config(arguments.where, arguments.overrides);
    checkpoint_dir = config->checkpoint.dir;
  }
  if (!arguments.checkpoint.empty()) checkpoint_dir = arguments.checkpoint;
  auto checkpoint = std::make_unique<Checkpoint>(resolve_checkpoint(checkpoint_dir), Verify::kSizes);
  if (!config) config = config_of(*checkpoint, arguments.overrides);
  return {.config = std::move(*config), .checkpoint = std::move(checkpoint)};
}

}  // namespace meshtrain::cli
