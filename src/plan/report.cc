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

std::string gigabytes(std::int64_t bytes) {
  return fmt::format("{:.3f} GB", static_cast<double>(bytes) * 1e-9);
}

// GB are 1e9 bytes, as the field's papers count them.
std::string stage_table(const std::vector<StagePlan>& stages, std::int64_t chosen) {
  std::string text =
      fmt::format("{:<8} {:>16} {:>16} {:>16}\n", "zero", "states a rank", "memory a rank", "sent a step");
  std::string narrow;
  for (const StagePlan& stage : stages) {
    text += fmt::format("{:<8} {:>16} {:>16} {:>16}\n",
                        fmt::format("{}{}", stage.zero, stage.zero == chosen ? " *" : ""),
                        gigabytes(stage.states), gigabytes(stage.memory), gigabytes(stage.sent));
    narrow += fmt::format("{}{}", narrow.empty() ? "" : ", ", gigabytes(stage.states_16_bit_gradients));
  }
  text += "States are parameters, gradients, masters and optimizer state; * is what the config asks for.\n";
  if (stages.front().states_16_bit_gradients != stages.front().states) {
    text += fmt::format("With 16-bit gradients (precision.gradients) states would be {}.\n", narrow);
  }
  return text;
}

std::string rank_text(const Plan& plan) {
  const RankPlan& other = plan.ranks.back();
  const std::string who =
      plan.ranks.size() == 2 ? "rank 1" : fmt::format("ranks 1 to {}, each", plan.ranks.size() - 1);
  std::string text = other.memory == plan.memory ? fmt::format("{}: the same", who)
                                                 : fmt::format("{}: {} bytes  {}", who, other.memory.total(),
                                                               format_bytes(other.memory.total()));
  text += "\nsent a step by each rank:";
  for (const Traffic traffic : {Traffic::kGradients, Traffic::kParameters, Traffic::kControl}) {
    text += fmt::format("  {} {}", name_of(traffic), other.sent.sent_for(traffic));
  }
  return text + " bytes\n\n";
}

nlohmann::json ranks_json(const std::vector<RankPlan>& ranks) {
  nlohmann::json json = nlohmann::json::array();
  for (const RankPlan& rank : ranks) {
    nlohmann::json sent;
    for (const Traffic traffic : {Traffic::kGradients, Traffic::kParameters, Traffic::kControl}) {
      sent[std::string(name_of(traffic))] = rank.sent.sent_for(traffic);
    }
    json.push_back(
        {{"rank", json.size()}, {"memory", memory_to_json(rank.memory)}, {"sent_bytes_per_step", sent}});
  }
  return json;
}

nlohmann::json stages_json(const std::vector<StagePlan>& stages) {
  nlohmann::json json = nlohmann::json::array();
  for (const StagePlan& stage : stages) {
    json.push_back({{"zero", stage.zero},
                    {"states_bytes", stage.states},
                    {"states_bytes_16_bit_gradients", stage.states_16_bit_gradients},
                    {"memory_bytes", stage.memory},
                    {"sent_bytes_per_step", stage.sent}});
  }
  return json;
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
          {"ranks", ranks_json(plan.ranks)},
          {"zero_stages", stages_json(plan.stages)},
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
  if (plan.ranks.size() > 1) text += "rank 0\n";
  text += memory_table(plan.memory) + "\n\n";
  if (plan.ranks.size() > 1) text += rank_text(plan) + stage_table(plan.stages, config.mesh.zero) + "\n";
  text += layer_table(plan.layers);
  text += "The head's backward pass is part of its forward pass.\n";
  text += fmt::format("\none step: {} tokens, {} executed; MFU counts {} a token ({})\n", plan.tokens_per_step,
                      format_flops(plan.step_flops), format_flops(plan.model_flops_per_token), kFlopConvention);
  return text;
}

}  // namespace meshtrain
