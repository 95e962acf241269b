#include "cli/model_arguments.h"

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/huggingface/token_ids.h"
#include "cli/commands.h"
#include "train/checkpointing.h"
#include "train/model_source.h"
#include "train/run_folder.h"

namespace meshtrain::cli {
namespace {

TrainedModel open_folder(const ModelArguments& arguments) {
  if (!arguments.checkpoint.empty()) {
    throw_user_error("--checkpoint {}: {} is a Hugging Face folder, which has no checkpoints; leave it out",
                     arguments.checkpoint, arguments.where);
  }
  return {.config = config_of_folder(arguments.where, arguments.overrides),
          .weights = open_weights(arguments.where),
          .checkpoint = nullptr};
}

}  // namespace

void add_model_arguments(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("MODEL", arguments.where,
                  "A config (TOML), a run folder, a checkpoint, or a Hugging Face folder")
      ->required();
  command.add_option("--checkpoint", arguments.checkpoint, "Use this checkpoint instead of the newest");
  add_overrides(command, arguments.overrides);
}

TrainedModel open_model(const ModelArguments& arguments) {
  const bool is_folder = std::filesystem::is_directory(arguments.where);
  if (!is_folder && !std::filesystem::exists(arguments.where)) {
    throw_user_error(
        "{} does not exist: name a config (TOML), a run folder, a checkpoint or a Hugging Face folder",
        arguments.where);
  }
  if (is_hf_folder(arguments.where)) return open_folder(arguments);
  std::string checkpoint_dir = arguments.where;
  std::optional<Config> config;
  if (!is_folder) {
    config = load_config(arguments.where, arguments.overrides);
    checkpoint_dir = config->checkpoint.dir;
  }
  if (!arguments.checkpoint.empty()) checkpoint_dir = arguments.checkpoint;
  auto checkpoint = std::make_unique<Checkpoint>(find_checkpoint(checkpoint_dir), Verify::kReads);
  checkpoint->verify_files();
  if (!config) config = config_of(*checkpoint, arguments.overrides);
  const Checkpoint* same = checkpoint.get();
  return {.config = std::move(*config), .weights = std::move(checkpoint), .checkpoint = same};
}

std::vector<std::int64_t> TrainedModel::stop_ids() const {
  const std::optional<HfTokenIds> ids =
      checkpoint == nullptr ? hf_token_ids_of_folder(weights->path()) : hf_token_ids_of(*checkpoint);
  return ids ? ids->stop_ids(weights->path()) : std::vector<std::int64_t>{};
}

void load_weights_of(const TrainedModel& trained, const ModelSpec& spec, InferenceModel& model) {
  if (trained.checkpoint != nullptr) {
    check_same_model(spec, *trained.checkpoint);
  } else {
    check_model_of_source(spec, describe_model(trained.weights->path()).spec, trained.weights->path());
  }
  load_weights(model.params(), model.stream(), *trained.weights);
}

}  // namespace meshtrain::cli
