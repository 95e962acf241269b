#include "plan/plan.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "comm/engines.h"
#include "model/flops.h"
#include "train/assembly.h"
#include "train/step.h"

namespace meshtrain {
namespace {

// One rank of the trainer on a simulated device, after a step. Its arenas only measure: what it counts is not
// how large they are.
class SimulatedRank {
 public:
  SimulatedRank(const Config& config, int rank)
      : world_(make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)))),
        device_(world_->make_device()),
        assembly_(config, *device_, *world_, std::nullopt) {
    const auto tokens =
        static_cast<std::size_t>(assembly_.micro_batch_shape().tokens() * assembly_.micro_steps());
    const std::vector<std::int32_t> zeros(tokens, 0);
    train_step(assembly_, {.tokens = zeros, .targets = zeros}, 0.0, 1);
  }

  const Assembly& assembly() const { return assembly_; }

 private:
  std::unique_ptr<World> world_;
  std::unique_ptr<Device> device_;
  Assembly assembly_;
};

Config with_micro_steps(Config config, std::int64_t steps) {
  config.train.global_batch = config.train.micro_batch * config.mesh.dp * steps;
  return config;
}

// What a step sends is a part that is the same for every step, and one for each of its micro-steps.
CommStats sent_in_step(const Config& config, int rank) {
  const std::int64_t steps = config.train.global_batch / config.train.micro_batch / config.mesh.dp;
  const CommStats one = SimulatedRank(with_micro_steps(config, 1), rank).assembly().sent();
  if (steps == 1) return one;
  const CommStats two = SimulatedRank(with_micro_steps(config, 2), rank).assembly().sent();
  CommStats all = one;
  for (std::size_t i = 0; i < kTrafficKinds; ++i) {
    all.sent[i] += (two.sent[i] - one.sent[i]) * (steps - 1);
    all.calls[i] += (two.calls[i] - one.calls[i]) * (steps - 1);
  }
  return all;
}

MemoryUse memory_of_rank(const Config& config, int rank) {
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  return Assembly(config, *device, *world, measure_arenas(config, rank)).planned_memory();
}

RankPlan plan_rank(const Config& config, int rank) {
  return {.memory = memory_of_rank(config, rank), .sent = sent_in_step(config, rank)};
}

// Data-parallel ranks differ in which part they own, not in how much; the first writes the checkpoints.
std::vector<RankPlan> plan_ranks(const Config& config) {
  std::vector<RankPlan> ranks(static_cast<std::size_t>(ranks_of(config.mesh)));
  ranks.front() = plan_rank(config, 0);
  if (ranks.size() > 1) std::fill(ranks.begin() + 1, ranks.end(), plan_rank(config, 1));
  return ranks;
}

std::int64_t states_of(const MemoryUse& use) {
  return use[MemoryCategory::kParameters] + use[MemoryCategory::kGradients] + use[MemoryCategory::kMaster] +
         use[MemoryCategory::kOptimizer];
}

StagePlan plan_stage(Config config, int zero) {
  config.mesh.zero = zero;
  const RankPlan rank = plan_rank(config, 1);
  Config narrow = config;
  narrow.precision.gradients = config.precision.compute;
  narrow.reduction = "fast";
  return {.zero = zero,
          .states = states_of(rank.memory),
          .states_16_bit_gradients = states_of(memory_of_rank(narrow, 1)),
          .memory = rank.memory.total(),
          .sent = rank.sent.sent_for(Traffic::kGradients) + rank.sent.sent_for(Traffic::kParameters)};
}

}  // namespace

Plan make_plan(const Config& config) {
  const SimulatedRank rank(with_micro_steps(config, 1), 0);
  const Assembly& assembly = rank.assembly();
  Plan plan;
  plan.ranks = plan_ranks(config);
  plan.memory = plan.ranks.front().memory;
  for (int zero = 0; zero <= 3 && config.mesh.dp > 1; ++zero) plan.stages.push_back(plan_stage(config, zero));
  plan.parameters = parameter_count(config.model);
  plan.layers = assembly.model->profile();
  plan.step_flops = assembly.stream.total().flops * (config.train.global_batch / config.train.micro_batch);
  plan.model_flops_per_token = model_flops_per_token(config.model, config.data.seq_len);
  plan.tokens_per_step = config.train.global_batch * config.data.seq_len;
  return plan;
}

}  // namespace meshtrain
