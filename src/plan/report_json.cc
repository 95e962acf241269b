#include <nlohmann/json.hpp>

#include "model/flops.h"
#include "plan/plan.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

// An integer where JSON readers have one for it.
nlohmann::json to_json(StepFlops flops) {
  if (flops < 0x1p63L) return static_cast<std::int64_t>(flops);
  return static_cast<double>(flops);
}

nlohmann::json to_json(const RankPlan& rank) {
  nlohmann::json sent;
  for (const Traffic traffic :
       {Traffic::kGradients, Traffic::kParameters, Traffic::kTensor, Traffic::kPipeline, Traffic::kControl}) {
    sent[std::string(name_of(traffic))] = rank.sent.sent_for(traffic);
  }
  return {{"memory", memory_to_json(rank.memory)},
          {"sent_bytes_per_step", sent},
          {"sent_bytes_per_step_by_axis", meshtrain::to_json(rank.along_axes)}};
}

// Ranks of a stage are alike, so that few are made and the others copied.
nlohmann::json ranks_json(const Plan& plan) {
  nlohmann::json json = nlohmann::json::array();
  for (const StagePlan& stage : plan.stages) {
    const std::int64_t end = static_cast<std::int64_t>(&stage - plan.stages.data() + 1) * plan.ranks_of_stage;
    const nlohmann::json rank = to_json(stage.rank);
    while (static_cast<std::int64_t>(json.size()) < end) json.push_back(rank);
  }
  for (std::size_t i = 0; i < json.size(); ++i) json[i]["rank"] = i;
  return json;
}

nlohmann::json to_json(const PiecePlan& piece) {
  return {{"first_layer", piece.layers.first_block}, {"layers", piece.layers.blocks},
          {"embedding", piece.layers.embedding},     {"head", piece.layers.head},
          {"live_micro_batches", piece.live},        {"activation_bytes", piece.activation_bytes}};
}

nlohmann::json stages_json(const Plan& plan) {
  nlohmann::json json = nlohmann::json::array();
  for (const StagePlan& stage : plan.stages) {
    nlohmann::json pieces = nlohmann::json::array();
    for (const PiecePlan& piece : stage.pieces) pieces.push_back(to_json(piece));
    json.push_back({{"stage", json.size()},
                    {"parameters", stage.parameters},
                    {"pieces", pieces},
                    {"live_micro_batches", stage.live},
                    {"split_micro_batches", stage.split},
                    {"split_bytes", stage.split_bytes},
                    {"memory", memory_to_json(stage.rank.memory)},
                    {"flops_per_step", to_json(stage.flops)}});
  }
  return json;
}

nlohmann::json ring_json(const Plan& plan, std::initializer_list<AxisTraffic> traffic) {
  const std::int64_t stage = busiest_stage(plan, traffic);
  const AxisBytes& bytes = plan.stages[static_cast<std::size_t>(stage)].rank.along_axes;
  return {{"busiest_stage", stage}, {"bytes_per_step", sum_of(bytes, traffic)}};
}

nlohmann::json links_json(const Plan& plan) {
  nlohmann::json stages = nlohmann::json::array();
  for (const StageLink& link : stage_links(plan)) {
    stages.push_back({{"from", link.from},
                      {"to", link.to},
                      {"activation_bytes_per_step", link.activations},
                      {"gradient_bytes_per_step", link.gradients}});
  }
  return {{"tp", ring_json(plan, {AxisTraffic::kTensorLayers, AxisTraffic::kTensorCopies})},
          {"pp", stages},
          {"dp", ring_json(plan, {AxisTraffic::kDataGradients, AxisTraffic::kDataParameters})}};
}

nlohmann::json zero_json(const std::vector<ZeroPlan>& zero_stages) {
  nlohmann::json json = nlohmann::json::array();
  for (const ZeroPlan& plan : zero_stages) {
    json.push_back({{"zero", plan.zero},
                    {"states_bytes", plan.states},
                    {"states_bytes_16_bit_gradients", plan.states_16_bit_gradients},
                    {"memory_bytes", plan.memory},
                    {"sent_bytes_per_step", plan.sent}});
  }
  return json;
}

nlohmann::json layers_json(const std::vector<LayerProfile>& layers) {
  nlohmann::json json = nlohmann::json::array();
  for (const LayerProfile& layer : layers) {
    json.push_back({{"name", layer.name},
                    {"parameters", layer.parameters},
                    {"activation_bytes", layer.activation_bytes},
                    {"forward_flops", layer.forward_flops},
                    {"backward_flops", layer.backward_flops}});
  }
  return json;
}

}  // namespace

nlohmann::json to_json(const Plan& plan, const Config& config) {
  return {{"preset", config.preset},
          {"parameters", plan.parameters},
          {"memory", memory_to_json(plan.rank(0).memory)},
          {"checkpoint_copy_bytes", plan.checkpoint_copy},
          {"ranks", ranks_json(plan)},
          {"stages", stages_json(plan)},
          {"links", links_json(plan)},
          {"zero_stages", zero_json(plan.zero_stages)},
          {"layers", layers_json(plan.layers)},
          {"micro_batch", config.train.micro_batch},
          {"global_batch", config.train.global_batch},
          {"seq_len", config.data.seq_len},
          {"tokens_per_step", plan.tokens_per_step},
          {"step_flops", to_json(plan.step_flops)},
          {"model_flops_per_token", plan.model_flops_per_token},
          {"flop_convention", kFlopConvention}};
}

}  // namespace meshtrain
