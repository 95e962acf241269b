#include "train/checkpointing.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "ops/elementwise.h"
#include "train/model_source.h"

namespace meshtrain {
namespace {

std::vector<std::string> lines_of_model_section(const ModelSpec& spec) {
  Config config;
  config.model = spec;
  std::istringstream text(to_toml(config));
  std::vector<std::string> lines;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('[')) inside = line == "[model]";
    if (inside && line.find('=') != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// Shapes alone do not tell models apart: the same matrices serve 4 heads and 8.
void check_same_model(const ModelSpec& here, const Checkpoint& checkpoint) {
  const ModelSpec there = config_of(checkpoint).model;
  if (here == there) return;
  const std::vector<std::string> mine = lines_of_model_section(here);
  const std::vector<std::string> theirs = lines_of_model_section(there);
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] == theirs[i]) continue;
    throw_user_error(
        "{} is a checkpoint of another model: it has {} where the config has {}; use that model's config, or "
        "another "
        "checkpoint.dir",
        checkpoint.path(), theirs[i], mine[i]);
  }
  throw_user_error("{} is a checkpoint of another model", checkpoint.path());
}

}  // namespace

CheckpointContents checkpoint_contents(const Assembly& assembly, const WholeState& state,
                                       const RunPosition& position) {
  CheckpointContents contents;
  contents.step = position.step;
  contents.model = state.model();
  contents.optimizer = state.optimizer();
  contents.state = {{"updates", position.updates},
                    {"position", position.position},
                    {"optimizer", std::string(assembly.optimizer->name())},
                    {"config", to_toml(assembly.config())}};
  if (assembly.loss_scaler) {
    const LossScaler::State& scaler = assembly.loss_scaler->state();
    contents.state["loss_scaler"] = {{"scale", scaler.scale}, {"good_steps", scaler.good_steps}};
  }
  return contents;
}

Config config_of(const Checkpoint& checkpoint, const std::vector<std::string>& overrides) {
  Config config =
      parse_config(checkpoint.state().at("config").get<std::string>(), checkpoint.path(), overrides);
  config.data.tokenizer = tokenizer_in(checkpoint.path(), config.data.tokenizer);
  return config;
}

RunPosition restore(Assembly& assembly, const Checkpoint& checkpoint) {
  check_same_model(assembly.config().model, checkpoint);
  const nlohmann::json& state = checkpoint.state();
  if (const auto saved = state.at("optimizer").get<std::string>(); saved != assembly.optimizer->name()) {
    throw_user_error("{} holds the state of optimizer {}, and optimizer.name is \"{}\"; set it back to go on",
                     checkpoint.path(), saved, assembly.optimizer->name());
  }
  assembly.settle();  // nothing reads what is about to change
  const StateDestinations here = destinations_in(assembly);
  read_tensors(checkpoint.model(), here.model);
  read_tensors(checkpoint.optimizer(), here.optimizer);
  assembly.publish_masters();
  if (assembly.loss_scaler && state.contains("loss_scaler")) {
    const nlohmann::json& scaler = state.at("loss_scaler");
    assembly.loss_scaler->restore({.scale = scaler.at("scale"), .good_steps = scaler.at("good_steps")});
  }
  return {.step = checkpoint.step(), .updates = state.at("updates"), .position = state.at("position")};
}

void load_weights(ParamStore& params, Stream& stream, const ModelSpec&, const WeightSource& source) {
  std::vector<float> values;
  for (const Param& param : params.params()) {
    values.resize(static_cast<std::size_t>(param.numel()));
    source.read(param.decl.name, param.decl.shape, 0, values);
    ops::cast(stream, Tensor(values.data(), DType::kF32, param.decl.shape), params.weight(param));
  }
}

void load_masters(Assembly& assembly, const WeightSource& source) {
  assembly.settle();
  for (const TensorDestination& tensor : destinations_in(assembly).model) {
    for (const TensorDestination::Piece& piece : tensor.pieces) {
      source.read(tensor.name, tensor.shape, piece.first,
                  {static_cast<float*>(piece.data), static_cast<std::size_t>(piece.count)});
    }
  }
  assembly.publish_masters();
}

}  // namespace meshtrain
