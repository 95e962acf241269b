#include "plan/plan.h"

#include <memory>

#include "model/flops.h"
#include "train/assembly.h"
#include "train/step.h"

namespace meshtrain {

Plan make_plan(const Config& config) {
  const std::unique_ptr<Device> device = make_sim_device();
  Assembly assembly(config, *device, measure_arenas(config));
  const OpCost before = assembly.stream.total();
  const auto tokens = static_cast<std::size_t>(assembly.micro_batch_shape().tokens());
  const std::vector<std::int32_t> zeros(tokens, 0);
  train_step(assembly, {.tokens = zeros, .targets = zeros}, 0.0, 1);
  const std::int64_t micro_batch_flops = (assembly.stream.total() - before).flops;

  Plan plan;
  plan.memory = assembly.planned_memory();
  plan.parameters = assembly.params.count();
  plan.layers = assembly.model->profile();
  plan.step_flops = micro_batch_flops * assembly.micro_steps();
  plan.model_flops_per_token = model_flops_per_token(config.model, config.data.seq_len);
  plan.tokens_per_step = config.train.global_batch * config.data.seq_len;
  return plan;
}

}  // namespace meshtrain
