#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/flops.h"
#include "plan/plan.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

bool same_costs(const LayerProfile& a, const LayerProfile& b) {
  return a.parameters == b.parameters && a.activation_bytes == b.activation_bytes &&
         a.forward_flops == b.forward_flops && a.backward_flops == b.backward_flops;
}

std::string layer_table(const std::vector<LayerProfile>& layers) {
  std::string text = fmt::format("{:<18} {:>15} {:>14} {:>14} {:>14}\n", "layer (a micro-batch)", "parameters",
                                 "activations", "forward FLOP", "backward FLOP");
  for (std::size_t first = 0; first < layers.size();) {
    std::size_t last = first;
    while (last + 1 < layers.size() && same_costs(layers[first], layers[last + 1])) ++last;
    const LayerProfile& layer = layers[first];
    const std::string name = last > first ? fmt::format("{} .. {}", layer.name, layers[last].name) : layer.name;
    text += fmt::format("{:<21} {:>15} {:>14} {:>14} {:>14}\n", name, layer.parameters,
                        format_bytes(layer.activation_bytes), format_flops(layer.forward_flops),
                        format_flops(layer.backward_flops));
    first = last + 1;
  }
  return text;
}

}  // namespace

nlohmann::json to_json(const Plan& plan, const Config& config) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerProfile& layer : plan.layers) {
    layers.push_back({{"name", layer.name},
                      {"parameters", layer.parameters},
                      {"activation_bytes", layer.activation_bytes},
                      {"forward_flops", layer.forward_flops},
                      {"backward_flops", layer.backward_flops}});
  }
  return {{"preset", config.preset},
          {"parameters", plan.parameters},
          {"memory", memory_to_json(plan.memory)},
          {"layers", layers},
          {"micro_batch", config.train.micro_batch},
          {"global_batch", config.train.global_batch},
          {"seq_len", config.data.seq_len},
          {"tokens_per_step", plan.tokens_per_step},
          {"step_flops", plan.step_flops},
          {"model_flops_per_token", plan.model_flops_per_token},
          {"flop_convention", kFlopConvention}};
}

std::string to_text(const Plan& plan, const Config& config) {
  std::string text = fmt::format("{} parameters, {} compute, micro-batch {} x {} tokens, recompute {}\n\n",
                                 plan.parameters, name_of(config.precision.compute), config.train.micro_batch,
                                 config.data.seq_len, name_of(config.recompute));
  text += memory_table(plan.memory) + "\n\n" + layer_table(plan.layers);
  text += "The head's backward pass is part of its forward pass.\n";
  text += fmt::format("\none step: {} tokens, {} executed; MFU counts {} a token ({})\n", plan.tokens_per_step,
                      format_flops(plan.step_flops), format_flops(plan.model_flops_per_token), kFlopConvention);
  return text;
}

}  // namespace meshtrain
