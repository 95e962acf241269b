#include "train/assembly.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "comm/engines.h"
#include "telemetry/units.h"
#include "train/step.h"
#include "train/threads.h"
#include "train/whole_state.h"

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

ArenaSizes measure_arenas(const Config& config, int rank) {
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  Assembly assembly(config, *device, *world, std::nullopt);
  // Every micro-batch needs the same; two show both a first and an accumulating one.
  const auto tokens = static_cast<std::size_t>(assembly.micro_batch_shape().tokens() *
                                               std::min<std::int64_t>(assembly.micro_steps(), 2));
  const std::vector<std::int32_t> zeros(tokens, 0);
  const HostBatch batch = {.tokens = zeros, .targets = zeros};
  train_step(assembly, batch, 0.0, 1);
  eval_step(assembly, batch);
  return {.saved = assembly.saved.peak(),
          .work = assembly.work.peak(),
          .transient = assembly.sync->transient_peak()};
}

ArenaSizes plan_memory(const Config& config, const Device& device, const World& world) {
  const ArenaSizes sizes = measure_arenas(config, world.rank());
  const std::unique_ptr<World> sim_world = make_sim_world(world.rank(), world.size());
  const std::unique_ptr<Device> sim = sim_world->make_device();
  const MemoryUse need = Assembly(config, *sim, *sim_world, sizes).planned_memory();
  const std::int64_t available = device.available_bytes();
  if (need.total() * world.local_size() > available) {
    const std::string ranks =
        world.local_size() > 1 ? fmt::format(" for each of the {} ranks of this host", world.local_size()) : "";
    throw_user_error(
        "this run needs {} of memory{} and {} can be had; lower train.micro_batch or data.seq_len, set "
        "recompute.policy = \"full\", {}or take a smaller model. By category:\n{}",
        format_bytes(need.total()), ranks, format_bytes(available),
        world.size() > 1 && config.mesh.zero < 3 ? "raise mesh.zero, " : "", memory_table(need));
  }
  return sizes;
}

Assembly::Assembly(const Config& config, Device& device, World& world, const std::optional<ArenaSizes>& sizes)
    : groups(config, world),
      stream(device, resolve_threads(config.machine.threads)),
      params(static_cast<int>(config.mesh.dp)),
      schedule(make_schedule(config)),
      saved(make_arena(device, MemoryCategory::kActivations, "activations",
                       sizes ? std::optional(sizes->saved) : std::nullopt)),
      work(make_arena(device, MemoryCategory::kWorkspace, "workspace",
                      sizes ? std::optional(sizes->work) : std::nullopt)),
      config_(config),
      device_(device),
      queue_(device, config.mesh.overlap && config.mesh.dp > 1) {
  const int zero = static_cast<int>(config.mesh.zero);
  model = std::make_unique<Transformer>(config.model, params, device, config.precision.compute,
                                        config.data.seq_len, config.recompute);
  params.allocate(device, {.compute = config.precision.compute,
                           .gradients = config.precision.gradients,
                           .sharding = sharding_of(zero, *groups.dp)});
  optimizer = make_optimizer(optimizer_settings(config.optimizer));
  for (std::size_t i = 0; i < optimizer->state_names().size(); ++i) {
    optimizer_buffers_.push_back(
        device.allocate(params.owned_elements() * size_of(DType::kF32), MemoryCategory::kOptimizer));
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
  sync = make_grad_sync(
      {.store = params, .device = device, .stream = stream, .ranks = *groups.dp, .queue = queue_},
      {.zero = zero,
       .reduction = config.reduction == "tree" ? Reduction::kTree : Reduction::kFast,
       .micro_steps = micro_steps(),
       .bucket_bytes = static_cast<std::int64_t>(config.mesh.bucket_mb * 1e6),
       .prefetch = static_cast<int>(config.mesh.prefetch),
       .training_order = model->training_order(),
       .evaluation_order = model->evaluation_order(),
       .transient_bytes = sizes ? std::optional(sizes->transient) : std::nullopt});
}

void Assembly::initialize() {
  params.initialize(stream, config_.train.seed);
  publish_masters();
}

void Assembly::publish_masters() {
  params.refresh_weights(stream);
  for (int unit = 0; unit < static_cast<int>(params.units().size()); ++unit) {
    sync->publish_weights(unit, Traffic::kOther);
  }
}

BatchShape Assembly::micro_batch_shape() const {
  return {.batch = config_.train.micro_batch, .seq = config_.data.seq_len};
}

Context Assembly::context() {
  return {.stream = stream, .saved = saved, .work = work, .kept = work, .units = *sync, .tensor = tensor};
}

Tensor Assembly::owned_optimizer_state(int unit, std::size_t index) const {
  const std::int64_t begin = params.owned_offset(unit);
  return tensor_in(optimizer_buffers_[index], begin * size_of(DType::kF32), DType::kF32,
                   {params.owned_elements(unit)});
}

ParameterSpan Assembly::span_of(const OwnedSlice& slice) const {
  ParameterSpan span;
  span.master = slice.master;
  span.gradient = slice.gradient;
  if (params.compute_dtype() != DType::kF32) span.weight = slice.weight;
  for (std::size_t i = 0; i < optimizer_buffers_.size(); ++i) {
    span.states[i] =
        tensor_in(optimizer_buffers_[i], slice.offset * size_of(DType::kF32), DType::kF32, {slice.count});
  }
  span.decay = slice.param->decl.decay || config_.optimizer.decay_all;
  return span;
}

std::int64_t Assembly::checkpoint_copy_bytes() const {
  if (!leads()) return 0;
  const std::int64_t copy =
      config_.checkpoint.async
          ? params.count() * size_of(DType::kF32) * static_cast<std::int64_t>(1 + optimizer_buffers_.size())
          : 0;
  return copy + WholeState::buffer_bytes(params, optimizer_buffers_.size());
}

void Assembly::set_trace(Trace* trace) {
  settle();
  TraceTrack* const compute = trace == nullptr ? nullptr : &trace->track("compute");
  const auto track_of = [&](const CommQueue& queue, const char* name) {
    return trace != nullptr && queue.in_background() ? &trace->track(name) : compute;
  };
  TraceTrack* const queued = track_of(queue_, "dp communication");
  stream.set_trace(compute);
  queue_.set_trace(queued, compute);
  groups.control->set_trace(compute);
  groups.dp->set_trace(queued);
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
  use[MemoryCategory::kCommunication] += sync->transient_peak() - sync->transient_capacity();
  return use;
}

}  // namespace meshtrain
