#include "train/checkpointing.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/strict_json.h"
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

std::string tensor_name(const Param& param, std::string_view state) {
  return state.empty() ? param.decl.name : fmt::format("{}.{}", param.decl.name, state);
}

// Where this rank has some of a checkpoint's tensor: elements [first, first + data.numel()) of what it holds of
// the parameter.
struct SavedPlace {
  const Param* param = nullptr;
  std::string_view state;  // of the optimizer; empty: the master
  std::int64_t first = 0;
  Tensor data;  // fp32, flat
};

// All that this rank owns, masters first.
std::vector<SavedPlace> places_in(const Assembly& assembly) {
  std::vector<SavedPlace> masters;
  std::vector<SavedPlace> states;
  const auto names = assembly.optimizer->state_names();
  for (int unit = 0; unit < static_cast<int>(assembly.params.units().size()); ++unit) {
    for (const OwnedSlice& slice : assembly.params.owned_slices(unit)) {
      masters.push_back({.param = slice.param, .state = {}, .first = slice.first, .data = slice.master});
      const ParameterSpan span = assembly.span_of(slice);
      for (std::size_t i = 0; i < names.size(); ++i) {
        states.push_back(
            {.param = slice.param, .state = names[i], .first = slice.first, .data = span.states[i]});
      }
    }
  }
  masters.insert(masters.end(), states.begin(), states.end());
  return masters;
}

// This rank's part of it where data-parallel ranks share the work; perhaps nothing.
SavedPlace share_of(const SavedPlace& place, const Assembly& assembly) {
  const Unit& unit = assembly.params.units()[static_cast<std::size_t>(place.param->unit)];
  const std::int64_t share = unit.elements / assembly.groups.dp->size();
  const std::int64_t begin = share * assembly.groups.dp->rank() + unit.begin - place.param->offset;
  const std::int64_t first = std::max(place.first, begin);
  const std::int64_t end = std::min(place.first + place.data.numel(), begin + share);
  SavedPlace part = place;
  part.first = first;
  part.data = first < end ? place.data.slice(0, first - place.first, end - first) : Tensor();
  return part;
}

// Masters and optimizer state, without what is not a tensor.
CheckpointContents saved_pieces(const Assembly& assembly) {
  CheckpointContents contents;
  for (const SavedPlace& whole : places_in(assembly)) {
    const SavedPlace place = share_of(whole, assembly);
    const ParamDecl& decl = place.param->decl;
    if (!place.data.defined() || !decl.copies.first) continue;
    const PieceRange range = range_of(decl.shape, decl.slice, place.first, place.data.numel());
    if (range.count == 0) continue;
    auto& pieces = place.state.empty() ? contents.model : contents.optimizer;
    pieces.push_back({.name = tensor_name(*place.param, place.state),
                      .shape = decl.whole(),
                      .range = range,
                      .data = place.data.raw()});
  }
  return contents;
}

void read_into(const SavedPlace& place, const WeightSource& source) {
  const ParamDecl& decl = place.param->decl;
  const std::string name = tensor_name(*place.param, place.state);
  for_each_run(decl.shape, decl.slice, place.first, place.data.numel(), [&](const SliceRun& run) {
    float* to = place.data.data<float>() + (run.local - place.first);
    source.read(name, decl.whole(), run.global, {to, static_cast<std::size_t>(run.count)});
  });
}

// One place at a time: what was read of the source does not stay in memory.
void read_all(const Assembly& assembly, const WeightSource& source, bool with_optimizer) {
  for (const SavedPlace& place : places_in(assembly)) {
    if (!place.state.empty() && !with_optimizer) continue;
    read_into(place, source);
    source.let_go();
  }
}

// What checkpoint_contents() puts beside the tensors.
struct SavedState {
  RunPosition position;
  std::string optimizer;  // empty: weights alone
  std::optional<LossScaler::State> loss_scaler;
};

// Calls `read`; throws UserError where the state has not what it looks for.
template <class Read>
auto read_state(const Checkpoint& checkpoint, const Read& read) {
  try {
    return read(checkpoint.state());
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{} is damaged: its manifest has no proper state ({})", checkpoint.path(),
                     json_reason(error));
  }
}

SavedState state_of(const Checkpoint& checkpoint) {
  return read_state(checkpoint, [&](const nlohmann::json& json) {
    const auto count = [&](const char* key, const nlohmann::json& value) {
      const std::optional<std::int64_t> number = size_from(value);
      // Steps and samples to come are counted on from it.
      if (number && *number < std::int64_t{1} << 60U) return *number;
      throw_user_error("{} is damaged: \"{}\" in its manifest is no possible number.", checkpoint.path(), key);
    };
    SavedState state;
    state.position = {.step = count("step", checkpoint.step()),
                      .updates = count("updates", json.at("updates")),
                      .position = count("position", json.at("position"))};
    if (json.contains("bad_steps")) {
      state.position.bad_steps = bad_steps_from_json(json.at("bad_steps"), checkpoint.path());
    }
    if (json.contains("optimizer")) state.optimizer = json.at("optimizer");
    if (json.contains("loss_scaler")) {
      const nlohmann::json& scaler = json.at("loss_scaler");
      state.loss_scaler = {.scale = scaler.at("scale"), .good_steps = scaler.at("good_steps")};
    }
    return state;
  });
}

// That it has the tensors of this model and optimizer, and no others, so that nothing is read from one that has
// not.
void check_tensors(const Assembly& assembly, const Checkpoint& checkpoint, bool with_optimizer) {
  std::set<std::string> names;
  const auto expect = [&](const Param& param, std::string_view state) {
    const std::string& name = *names.insert(tensor_name(param, state)).first;
    checkpoint.read(name, param.decl.shape, 0, {});
  };
  for (const Param& param : assembly.layout.model().params()) {
    expect(param, {});
    if (!with_optimizer) continue;
    for (const std::string_view state : assembly.optimizer->state_names()) expect(param, state);
  }
  checkpoint.check_has_no_others_than(names);
}

}  // namespace

CheckpointContents checkpoint_contents(const Assembly& assembly, const RunPosition& position) {
  CheckpointContents contents = saved_pieces(assembly);
  contents.step = position.step;
  if (!assembly.leads()) return contents;
  const Config& config = assembly.config();
  contents.state = {{"updates", position.updates},
                    {"position", position.position},
                    {"bad_steps", to_json(position.bad_steps)},
                    {"optimizer", std::string(assembly.optimizer->name())},
                    {"rng", {{"generator", "philox4x32-10"}, {"seed", config.train.seed}}},
                    {"schedule", {{"name", config.optimizer.schedule}, {"steps", config.train.steps}}},
                    {"config", to_toml(config)}};
  if (assembly.loss_scaler) {
    const LossScaler::State& scaler = assembly.loss_scaler->state();
    contents.state["loss_scaler"] = {{"scale", scaler.scale}, {"good_steps", scaler.good_steps}};
  }
  if (assembly.token_ids) contents.state["token_ids"] = to_json(*assembly.token_ids);
  return contents;
}

std::int64_t checkpoint_bytes(const Assembly& assembly) {
  // A share with its padding, which is not written but makes all shares equal.
  const std::int64_t share = assembly.params.trained_elements() / assembly.groups.dp->size();
  return share * static_cast<std::int64_t>(1 + assembly.optimizer->state_names().size()) * size_of(DType::kF32);
}

Config config_of(const Checkpoint& checkpoint, const std::vector<std::string>& overrides) {
  const std::string text =
      read_state(checkpoint, [](const nlohmann::json& state) { return state.at("config").get<std::string>(); });
  Config config = parse_config(text, checkpoint.path(), overrides, ConfigWriter::kRun);
  config.data.tokenizer = with_carried_tokenizer(config.data.tokenizer, checkpoint);
  return config;
}

RunPosition position_of(const Checkpoint& checkpoint) {
  return state_of(checkpoint).position;
}

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

RunPosition restore(Assembly& assembly, const Checkpoint& checkpoint) {
  check_same_model(assembly.config().model, checkpoint);
  const SavedState state = state_of(checkpoint);
  assembly.token_ids = hf_token_ids_of(checkpoint);
  const bool has_optimizer = !state.optimizer.empty();
  if (has_optimizer && state.optimizer != assembly.optimizer->name()) {
    throw_user_error(
        "{} holds the state of optimizer {}, and optimizer.name is \"{}\"; set it back to go on, or begin "
        "a new run with these weights: model.from = \"{}\"",
        checkpoint.path(), state.optimizer, assembly.optimizer->name(), checkpoint.path());
  }
  check_tensors(assembly, checkpoint, has_optimizer);
  assembly.settle();  // nothing reads what is about to change
  if (!has_optimizer) assembly.reset_optimizer();
  read_all(assembly, checkpoint, has_optimizer);
  assembly.publish_masters();
  if (assembly.loss_scaler && state.loss_scaler) assembly.loss_scaler->restore(*state.loss_scaler);
  return state.position;
}

void load_masters(Assembly& assembly, const WeightSource& source) {
  assembly.settle();
  assembly.reset_optimizer();
  read_all(assembly, source, /*with_optimizer=*/false);
  assembly.publish_masters();
}

void load_weights(ParamStore& params, Stream& stream, const WeightSource& source) {
  std::int64_t largest = 0;
  for (const Param& param : params.params()) largest = std::max(largest, param.numel());
  const auto values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(largest));
  for (const Param& param : params.params()) {
    source.read(param.decl.name, param.decl.shape, 0,
                std::span(values.get(), static_cast<std::size_t>(param.numel())));
    source.let_go();
    ops::cast(stream, Tensor(values.get(), DType::kF32, param.decl.shape), params.weight(param));
  }
}

}  // namespace meshtrain
