// How `eval` and `generate` name a model.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "train/config.h"

namespace meshtrain::cli {

struct ModelArguments {
  std::string where;       // a TOML file, a run folder, or a checkpoint
  std::string checkpoint;  // instead of the newest
  std::vector<std::string> overrides;
};
void add_model_arguments(CLI::App& command, ModelArguments& arguments);

struct TrainedModel {
  Config config;
  std::unique_ptr<Checkpoint> checkpoint;
};
// The config is that of the TOML file, or the one that the checkpoint was trained with.
TrainedModel open_model(const ModelArguments& arguments);

}  // namespace meshtrain::cli
