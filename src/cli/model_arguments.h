// How `eval` and `generate` name a model.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "train/config.h"

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
  std::int64_t step = 0;  // of the checkpoint
};
// The config is that of the TOML file, the one that the checkpoint was trained with, or config_of_folder().
TrainedModel open_model(const ModelArguments& arguments);

}  // namespace meshtrain::cli
