#include "train/assembly.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "ops/elementwise.h"
#include "train/checkpointing.h"
#include "train/mesh_layout.h"
#include "train/processors.h"
#include "train/stages.h"
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

// Gives every rank what each owns of the weights.
void publish_units(const ParamStore& params, GradSync& sync) {
  for (int unit = 0; unit < static_cast<int>(params.units().size()); ++unit) {
    sync.publish_weights(unit, Traffic::kOther);
  }
}

}  // namespace

Assembly::Assembly(const Config& config, Device& device, World& world, const std::optional<ArenaSizes>& sizes)
    : groups(config, world),
      layout(config),
      stream(device, resolve_threads(config.machine.threads)),
      params(static_cast<int>(config.mesh.dp)),
      schedule(make_schedule(config)),
      work(make_arena(device, MemoryCategory::kWorkspace, "workspace",
                      sizes ? std::optional(sizes->work) : std::nullopt)),
      recomputed(make_arena(device, MemoryCategory::kActivations, "recomputed activations",
                            sizes ? std::optional(sizes->recomputed) : std::nullopt)),
      config_(config),
      device_(device),
      pipeline_(pipeline_of(config)),
      pieces_(pieces_of_stage(config, groups.place("pp"))),
      nothing_("activations", nullptr, 0),
      tensor(*groups.tensor, *groups.tensor_background, layer_queue_, config.mesh.sequence_parallel),
      tensor_in_evaluation(tensor.counted_as(Traffic::kEvaluation)),
      layer_queue_(device, config.mesh.overlap && config.mesh.tp > 1),
      queue_(device, config.mesh.overlap && world.size() > 1) {
  model = std::make_unique<Transformer>(
      config.model, params, device,
      TransformerOptions{.compute = config.precision.compute,
                         .positions = config.data.seq_len,
                         .recompute = config.recompute,
                         .tensor = tensor.part(),
                         .split_backward = schedule_of(config.mesh).splits_backward,
                         .pieces = pieces_});
  if (config.precision.compute == DType::kBF16 && !device.is_simulated()) {
    stream.set_bf16_products(agree_on_bf16_products(*groups.control, ops::this_processor()));
  }
  allocate_parameters();
  allocate_batch();
  model->upload_tables(stream);
  lay_out_pipeline(sizes);
  const Shape activation = {tensor.outer_rows(micro_batch_shape().tokens()), config.model.hidden};
  executor = std::make_unique<PipelineExecutor>(pipeline_, static_cast<int>(groups.place("pp")), world,
                                                groups.mesh.ranks_along({"pp"}), device,
                                                config.precision.compute, activation);
  std::vector<Communicator*> copies;
  for (Communicator* group : {groups.copies.get(), groups.head_copies.get()}) {
    if (group != nullptr && group->size() > 1) copies.push_back(group);
  }
  copies_.emplace(device, params, copies);
  sync = make_grad_sync({.store = params,
                         .device = device,
                         .stream = stream,
                         .ranks = *groups.dp,
                         .queue = queue_,
                         .copies = *copies_,
                         .idle = activations->whole(),
                         .tied = tied_link()},
                        {.zero = static_cast<int>(config.mesh.zero),
                         .reduction = config.reduction == "tree" ? Reduction::kTree : Reduction::kFast,
                         .micro_steps = micro_steps(),
                         .bucket_bytes = static_cast<std::int64_t>(config.mesh.bucket_mb * 1e6),
                         .prefetch = static_cast<int>(config.mesh.prefetch),
                         .transient_bytes = sizes ? std::optional(sizes->transient) : std::nullopt});
  if (config.checkpoint.async) {
    checkpoint_copy_ = device.allocate(checkpoint_bytes(*this), MemoryCategory::kWorkspace);
  }
}

void Assembly::allocate_parameters() {
  params.allocate(device_, {.compute = config_.precision.compute,
                            .gradients = config_.precision.gradients,
                            .sharding = sharding_of(static_cast<int>(config_.mesh.zero), *groups.dp)});
  squares.emplace(params);
  norm_place = norm_place_of(layout, params, static_cast<int>(groups.mesh.coordinate("tp")),
                             static_cast<int>(groups.mesh.coordinate("dp")));
  optimizer = make_optimizer(optimizer_settings(config_.optimizer));
  for (std::size_t i = 0; i < optimizer->state_names().size(); ++i) {
    optimizer_buffers_.push_back(
        device_.allocate(params.owned_elements() * size_of(DType::kF32), MemoryCategory::kOptimizer));
    // An update reads a state before it writes it.
    ops::touch(stream, tensor_in(optimizer_buffers_.back(), 0, DType::kF32, {params.owned_elements()}));
  }
  if (config_.precision.compute == DType::kF16) {
    loss_scaler.emplace(config_.precision.loss_scale, config_.precision.loss_scale_window);
  }
}

void Assembly::allocate_batch() {
  const std::int64_t count = micro_batch_shape().tokens();
  const std::int64_t bytes = count * size_of(DType::kI32);
  batch_buffer_ = device_.allocate(2 * bytes, MemoryCategory::kWorkspace);
  tokens = tensor_in(batch_buffer_, 0, DType::kI32, {count});
  targets = tensor_in(batch_buffer_, bytes, DType::kI32, {count});
}

void Assembly::lay_out_pipeline(const std::optional<ArenaSizes>& sizes) {
  order_ = schedule_of(config_.mesh).order(pipeline_, static_cast<int>(groups.place("pp")));
  for (const PipelineAction& action : order_) {
    for (const int unit : acquires_of(action)) acquires_.push_back(unit);
  }
  slot_counts_ = slots_for(order_, pieces_);
  activations.emplace(device_, slot_counts_, sizes ? std::optional(sizes->activations) : std::nullopt);
}

std::vector<int> Assembly::acquires_of(const PipelineAction& action) const {
  using Pass = Transformer::Pass;
  const Pass pass = action.step == PipelineStep::kForward    ? Pass::kForward
                    : action.step == PipelineStep::kBackward ? Pass::kBackward
                                                             : Pass::kBackwardWeight;
  return model->acquires_of(pass, action.chunk);
}

TiedLink Assembly::tied_link() const {
  if (!groups.tied) return {};
  const bool first = groups.place("pp") == 0;
  return {.stages = groups.tied.get(),
          .owner_unit = first ? model->embedding_unit() : -1,
          .copy_unit = first ? -1 : model->copy_unit()};
}

std::vector<PipelineAction> Assembly::evaluation_order(std::int64_t micro_batches) const {
  PipelineShape shape = pipeline_;
  shape.micro_batches = micro_batches;
  std::vector<PipelineAction> order =
      schedule_of(config_.mesh).order(shape, static_cast<int>(groups.place("pp")));
  std::erase_if(order, [](const PipelineAction& action) { return action.step != PipelineStep::kForward; });
  return order;
}

void Assembly::initialize() {
  params.initialize(stream, config_.train.seed);
  publish_units(params, *sync);
}

void Assembly::reset_optimizer() {
  for (const Buffer& states : optimizer_buffers_) {
    ops::fill(stream, tensor_in(states, 0, DType::kF32, {params.owned_elements()}), 0.0F);
  }
  if (loss_scaler) loss_scaler.emplace(config_.precision.loss_scale, config_.precision.loss_scale_window);
}

void Assembly::publish_masters() {
  params.refresh_weights(stream);
  publish_units(params, *sync);
}

BatchShape Assembly::micro_batch_shape() const {
  return {.batch = config_.train.micro_batch, .seq = config_.data.seq_len};
}

Context Assembly::context(Arena* split) {
  return {.stream = stream,
          .saved = nothing_,
          .work = work,
          .kept = split != nullptr ? *split : work,
          // Where weight gradients come later, what they need stays until then.
          .recomputed = split != nullptr ? *split : recomputed,
          .units = *sync,
          .tensor = tensor};
}

Context Assembly::evaluation_context() {
  const bool recomputes =
      config_.recompute == RecomputePolicy::kFull && !schedule_of(config_.mesh).splits_backward;
  Arena& saved = activations->whole();
  return {.stream = stream,
          .saved = saved,
          .work = work,
          .kept = work,
          .recomputed = recomputes ? recomputed : saved,
          .units = *sync,
          .tensor = tensor_in_evaluation};
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

std::span<std::byte> Assembly::checkpoint_copy() const {
  return {static_cast<std::byte*>(checkpoint_copy_.data()), static_cast<std::size_t>(checkpoint_copy_.bytes())};
}

void Assembly::set_trace(Trace* trace) {
  settle();
  TraceTrack* const compute = trace == nullptr ? nullptr : &trace->track("compute");
  const auto track_of = [&](const CommQueue& queue, const char* name) {
    return trace != nullptr && queue.in_background() ? &trace->track(name) : compute;
  };
  TraceTrack* const layers = track_of(layer_queue_, "tp communication");
  TraceTrack* const gradients = track_of(queue_, "dp communication");
  stream.set_trace(compute);
  layer_queue_.set_trace(layers, compute);
  queue_.set_trace(gradients, compute);
  groups.set_trace(compute, layers, gradients);
  executor->set_trace(trace, compute);
}

MemoryUse Assembly::planned_memory() const {
  return device_.memory().peak();
}

MemoryUse Assembly::peak_memory() const {
  MemoryUse use = planned_memory();
  use[MemoryCategory::kActivations] += activations->filled() - activations->capacity();
  use[MemoryCategory::kActivations] += recomputed.peak() - recomputed.capacity();
  use[MemoryCategory::kWorkspace] += work.peak() - work.capacity();
  use[MemoryCategory::kCommunication] += sync->transient_peak() - sync->transient_capacity();
  return use;
}

ArenaSizes Assembly::arena_peaks() const {
  return {.activations = activations->peaks(),
          .work = work.peak(),
          .recomputed = recomputed.peak(),
          .transient = sync->transient_peak()};
}

void Assembly::settle() {
  queue_.wait_all();
  layer_queue_.wait_all();
  executor->settle();
}

}  // namespace meshtrain
