#include "plan/simulated_rank.h"

#include <optional>

#include "comm/engines.h"
#include "train/step.h"

namespace meshtrain {

SimulatedRank::SimulatedRank(const Config& config, std::int64_t rank)
    : world_(make_sim_world(static_cast<int>(rank), static_cast<int>(ranks_of(config.mesh)))),
      device_(world_->make_device()),
      assembly_(config, *device_, *world_, std::nullopt) {
  assembly_.executor->set_watch(
      [this](const PipelineAction& action) { actions_.push_back({.action = action, .cost = since_last()}); });
  const auto tokens =
      static_cast<std::size_t>(assembly_.micro_batch_shape().tokens() * assembly_.micro_steps());
  const std::vector<std::int32_t> zeros(tokens, 0);
  train_step(assembly_, {.tokens = zeros, .targets = zeros}, 0.0, 1);
  rest_ = since_last();
}

SimulatedRank::Cost SimulatedRank::since_last() {
  const Cost all = {.ops = assembly_.stream.total(), .sent = axis_bytes_of(assembly_)};
  const Cost cost = {.ops = all.ops - last_.ops, .sent = all.sent - last_.sent};
  last_ = all;
  return cost;
}

}  // namespace meshtrain
