#include "train/assembly.h"

#include <algorithm>

#include "base/error.h"
#include "telemetry/units.h"
#include "train/step.h"
#include "train/threads.h"

namespace meshtrain {
namespace {

Arena make_arena(Device& device, MemoryCategory category, const char* name,
                 const std::optional<std::int64_t>& capacity) {
  return capacity ? Arena(device, category, name, *capacity) : Arena::measuring(name);
}

OptimizerSettings optimizer_settings(const OptimizerConfig& config) {
  return {.name = config.name,
          .betas = config.betas,
          .eps = config.eps,
          .weight_decay = config.weight_decay,
          .momentum = config.momentum,
          .alpha = config.alpha};
}

Schedule make_schedule(const Config& config) {
  const Schedule schedule = {.kind = parse_schedule(config.optimizer.schedule),
                             .lr = config.optimizer.lr,
                             .steps = config.train.steps,
                             .warmup = config.optimizer.warmup,
                             .min_lr = config.optimizer.min_lr,
                             .decay_fraction = config.optimizer.decay_fraction};
  validate(schedule);
  return schedule;
}

}  // namespace

ArenaSizes measure_arenas(const Config& config) {
  const std::unique_ptr<Device> device = make_sim_device();
  Assembly assembly(config, *device, std::nullopt);
  // Every micro-batch needs the same; two show both a first and an accumulating one.
  const auto tokens = static_cast<std::size_t>(assembly.micro_batch_shape().tokens() *
                                               std::min<std::int64_t>(assembly.micro_steps(), 2));
  const std::vector<std::int32_t> zeros(tokens, 0);
  const GlobalBatch batch = {.tokens = zeros, .targets = zeros};
  train_step(assembly, batch, 0.0, 1);
  eval_step(assembly, batch);
  return {.saved = assembly.saved.peak(), .work = assembly.work.peak()};
}

ArenaSizes plan_memory(const Config& config, const Device& device) {
  const ArenaSizes sizes = measure_arenas(config);
  const std::unique_ptr<Device> sim = make_sim_device();
  const MemoryUse need = Assembly(config, *sim, sizes).planned_memory();
  const std::int64_t available = device.available_bytes();
  if (need.total() > available) {
    throw_user_error(
        "this run needs {} of memory and {} can be had; lower train.micro_batch or data.seq_len, set "
        "recompute.policy = \"full\", or take a smaller model. By category:\n{}",
        format_bytes(need.total()), format_bytes(available), memory_table(need));
  }
  return sizes;
}

Assembly::Assembly(const Config& config, Device& device, const std::optional<ArenaSizes>& sizes)
    : stream(device, resolve_threads(config.machine.threads)),
      schedule(make_schedule(config)),
      saved(make_arena(device, MemoryCategory::kActivations, "activations",
                       sizes ? std::optional(sizes->saved) : std::nullopt)),
      work(make_arena(device, MemoryCategory::kWorkspace, "workspace",
                      sizes ? std::optional(sizes->work) : std::nullopt)),
      config_(config),
      device_(device) {
  model = std::make_unique<Transformer>(config.model, params, device, config.precision.compute,
                                        config.data.seq_len, config.recompute);
  params.allocate(device, config.precision.compute, /*training=*/true);
  optimizer = make_optimizer(optimizer_settings(config.optimizer));
  for (std::size_t i = 0; i < optimizer->state_names().size(); ++i) {
    optimizer_buffers_.push_back(
        device.allocate(params.flat_elements() * size_of(DType::kF32), MemoryCategory::kOptimizer));
  }
  if (config.precision.compute == DType::kF16) {
    loss_scaler.emplace(config.precision.loss_scale, config.precision.loss_scale_window);
  }
  const std::int64_t batch_tokens = micro_batch_shape().tokens();
  const std::int64_t bytes = batch_tokens * size_of(DType::kI32);
  batch_buffer_ = device.allocate(2 * bytes, MemoryCategory::kWorkspace);
  tokens = tensor_in(batch_buffer_, 0, DType::kI32, {batch_tokens});
  targets = tensor_in(batch_buffer_, bytes, DType::kI32, {batch_tokens});
  model->upload_tables(stream);
}

BatchShape Assembly::micro_batch_shape() const {
  return {.batch = config_.train.micro_batch, .seq = config_.data.seq_len};
}

Context Assembly::context(bool accumulate) {
  return {.stream = stream, .saved = saved, .work = work, .accumulate = accumulate};
}

Tensor Assembly::optimizer_state(const Param& param, std::size_t index) const {
  return tensor_in(optimizer_buffers_[index], param.offset * size_of(DType::kF32), DType::kF32,
                   param.decl.shape);
}

ParameterSpan Assembly::span_of(const Param& param) const {
  const Shape flat = {param.numel()};
  ParameterSpan span;
  span.master = params.master(param).view(flat);
  span.gradient = params.gradient(param).view(flat);
  if (params.compute_dtype() != DType::kF32) span.weight = params.weight(param).view(flat);
  for (std::size_t i = 0; i < optimizer_buffers_.size(); ++i) {
    span.states[i] = optimizer_state(param, i).view(flat);
  }
  span.decay = param.decl.decay || config_.optimizer.decay_all;
  return span;
}

std::int64_t Assembly::checkpoint_copy_bytes() const {
  if (!config_.checkpoint.async) return 0;
  const auto tensors = static_cast<std::int64_t>(1 + optimizer_buffers_.size());
  return params.count() * size_of(DType::kF32) * tensors;
}

MemoryUse Assembly::planned_memory() const {
  MemoryUse use = device_.memory().peak();
  use[MemoryCategory::kWorkspace] += checkpoint_copy_bytes();
  return use;
}

MemoryUse Assembly::peak_memory() const {
  MemoryUse use = planned_memory();
  use[MemoryCategory::kActivations] += saved.peak() - saved.capacity();
  use[MemoryCategory::kWorkspace] += work.peak() - work.capacity();
  return use;
}

}  // namespace meshtrain
