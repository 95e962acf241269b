// How `eval` and `generate` name a model.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "train/config.h"
#include "train/inference.h"

namespace meshtrain::cli {

struct ModelArguments {
  std::string where;       // a TOML file, a run folder, a checkpoint, or a Hugging Face folder
  std::string checkpoint;  // instead of the newest
  std::vector<std::string> overrides;
};
void add_model_arguments(CLI::App& command, ModelArguments& arguments);

struct TrainedModel {
  Config config;
  std::unique_ptr<WeightSource> weights;
  const Checkpoint* checkpoint = nullptr;  // `weights`, where they are one

  std::int64_t step() const { return checkpoint == nullptr ? 0 : checkpoint->step(); }
  // The ids that end a text by what the Hugging Face folder says that the model is or began with. Throws
  // UserError.
  std::vector<std::int64_t> stop_ids() const;
};
// The config is that of the TOML file, the one that the checkpoint was trained with, or config_of_folder().
TrainedModel open_model(const ModelArguments& arguments);

// Throws UserError where the weights are of another model than `spec`, which `model` was made of.
void load_weights_of(const TrainedModel& trained, const ModelSpec& spec, InferenceModel& model);

}  // namespace meshtrain::cli
