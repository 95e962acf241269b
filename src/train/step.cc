#include "train/step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/stopwatch.h"
#include "base/trace.h"
#include "comm/agreement.h"
#include "gradsync/gradient_norm.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/transfer.h"
#include "train/bad_steps.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

using AtPhase = std::function<void(std::string_view phase)>;

std::int64_t count_unmasked(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t != ops::kIgnoredTarget; });
}

// Micro-batch `index` of one side of a host batch.
void load(Stream& stream, std::span<const std::int32_t> host, std::int64_t index, const Tensor& to) {
  const auto count = static_cast<std::size_t>(to.numel());
  ops::copy_from_host(stream, host.subspan(static_cast<std::size_t>(index) * count, count).data(), to);
}

// What this rank does with its micro-batches: the actions of a schedule in terms of the model.
class StepWork final : public PipelineWork {
 public:
  StepWork(Assembly& assembly, const HostBatch& batch, float loss_scale, const AtPhase& at_phase,
           StepResult& result)
      : assembly_(assembly),
        batch_(batch),
        loss_scale_(loss_scale),
        at_phase_(at_phase),
        result_(result),
        splits_(schedule_of(assembly.config().mesh).splits_backward),
        losses_(static_cast<std::size_t>(assembly.micro_steps()), 0.0) {}

  void forward(int piece, std::int64_t index, const Tensor& in, const Tensor& out) override {
    if (index > 0 && at_phase_) at_phase_("micro-step");
    const Stopwatch watch;
    const TraceSpan span = traced(PipelineStep::kForward, piece, index);
    ActivationSlots::Lease recomputed;
    if (splits_ && assembly_.config().recompute == RecomputePolicy::kFull) {
      recomputed = assembly_.activations->take_split();
    }
    Context ctx = assembly_.context(recomputed.first());
    Transformer::MicroBatch& micro = begin(piece, index);
    micro.shape = assembly_.micro_batch_shape();
    micro.tokens = assembly_.tokens;
    micro.targets = assembly_.targets;
    load(assembly_.stream, batch_.tokens, index, micro.tokens);
    assembly_.model->forward(ctx, piece, micro, in, out);
    result_.forward_seconds += watch.seconds();
  }

  void backward(int piece, std::int64_t index, const Tensor& d_out, const Tensor& d_in) override {
    const Stopwatch watch;
    const TraceSpan span = traced(PipelineStep::kBackward, piece, index);
    LiveMicroBatch& live = alive_.at({piece, index});
    if (splits_) live.split = assembly_.activations->take_split();
    Context ctx = begin_backward(live, index);
    load(assembly_.stream, batch_.targets, index, live.micro.targets);
    assembly_.model->backward(ctx, piece, live.micro, loss_scale_, d_out, d_in);
    if (live.micro.losses.defined()) {
      losses_[static_cast<std::size_t>(index)] = ops::sum(assembly_.stream, live.micro.losses);
    }
    if (!splits_) alive_.erase({piece, index});
    result_.backward_seconds += watch.seconds();
  }

  void backward_weight(int piece, std::int64_t index) override {
    const Stopwatch watch;
    const TraceSpan span = traced(PipelineStep::kBackwardWeight, piece, index);
    LiveMicroBatch& live = alive_.at({piece, index});
    Context ctx = begin_backward(live, index);
    assembly_.model->backward_weight(ctx, piece, live.micro);
    alive_.erase({piece, index});
    result_.backward_seconds += watch.seconds();
  }

  // Sums of token losses by micro-batch; zeros where the head lies on another stage.
  const std::vector<double>& losses() const { return losses_; }

 private:
  // From its forward pass to its last backward part.
  struct LiveMicroBatch {
    Transformer::MicroBatch micro;
    ActivationSlots::Lease saved;
    ActivationSlots::Lease split;
  };

  Transformer::MicroBatch& begin(int piece, std::int64_t index) {
    const ModelPiece& layers = assembly_.pieces()[static_cast<std::size_t>(piece)];
    LiveMicroBatch& live = alive_[{piece, index}];
    live.saved = assembly_.activations->take(layers);
    live.micro.arenas = assembly_.activations->arenas(layers, live.saved);
    return live.micro;
  }
  // "F3", as schedules are drawn.
  TraceSpan traced(PipelineStep step, int piece, std::int64_t index) const {
    TraceTrack* const track = assembly_.stream.trace();
    if (track == nullptr) return {};
    return {track, TraceKind::kCompute, "{}",
            to_string({.step = step, .chunk = piece, .micro_batch = index}, assembly_.model->pieces())};
  }
  Context begin_backward(const LiveMicroBatch& live, std::int64_t index) {
    assembly_.sync->begin_backward();
    load(assembly_.stream, batch_.tokens, index, assembly_.tokens);
    return assembly_.context(live.split.first());
  }

  Assembly& assembly_;
  const HostBatch& batch_;
  float loss_scale_;
  const AtPhase& at_phase_;
  StepResult& result_;
  bool splits_;
  std::vector<double> losses_;
  std::map<std::pair<int, std::int64_t>, LiveMicroBatch> alive_;  // by piece and micro-batch
};

// Gradients of the global batch's mean loss times `loss_scale`, in the store's owned gradients. Returns the sum
// of token losses of each micro-batch of this rank.
std::vector<double> compute_gradients(Assembly& assembly, const HostBatch& batch, double loss_scale,
                                      const AtPhase& at_phase, StepResult& result) {
  // A fully masked batch has no loss and no gradient.
  const double per_token = loss_scale / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));
  StepWork work(assembly, batch, static_cast<float>(per_token), at_phase, result);
  assembly.sync->begin_step(assembly.acquires());
  assembly.executor->run(assembly.order(), work, Traffic::kPipeline);
  if (at_phase) at_phase("collective");
  const Stopwatch watch;
  assembly.sync->finish_gradients();
  result.backward_seconds += watch.seconds();
  return work.losses();
}

// Unmasked targets of the global batch: every replica has one rank that counts.
std::int64_t count_unmasked_of_all(Assembly& assembly, const HostBatch& batch) {
  const bool counts = assembly.groups.place("tp") == 0 && assembly.groups.place("pp") == 0;
  return sum_of_ranks(*assembly.groups.control, counts ? count_unmasked(batch.targets) : 0, Traffic::kControl);
}

// The loss of the global batch, summed in the order of its micro-batches; and whether anybody wishes to stop.
void share_losses(Assembly& assembly, const std::vector<double>& own, bool wishes_to_stop, StepResult& result) {
  double sum = 0.0;
  if (assembly.model->has_head()) {
    const std::vector<double> all =
        gather_from_ranks<double>(*assembly.groups.replicas, own, Traffic::kControl);
    for (std::size_t i = 0; i < own.size(); ++i) {
      for (std::size_t at = i; at < all.size(); at += own.size()) sum += all[at];
    }
  }
  // One rank has it for all; the others bring zeros.
  const bool brings =
      assembly.model->has_head() && assembly.groups.place("tp") == 0 && assembly.groups.place("dp") == 0;
  std::array<double, 2> shared = {brings ? sum : 0.0, wishes_to_stop ? 1.0 : 0.0};
  const Tensor tensor(shared.data(), DType::kF64, {2});
  assembly.groups.control->all_reduce(tensor, tensor, ReduceOp::kSum, Traffic::kControl);
  result.loss = shared[0] / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));
  result.stop = shared[1] > 0.0;
}

// Each rank updates what it owns, unit by unit, and begins to pass it on.
void apply_update(Assembly& assembly, double lr, std::int64_t update, float gradient_scale) {
  const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "optimizer");
  for (int unit = 0; unit < static_cast<int>(assembly.params.units().size()); ++unit) {
    for (const OwnedSlice& slice : assembly.params.owned_slices(unit)) {
      assembly.optimizer->step(assembly.stream, assembly.span_of(slice),
                               {.lr = lr, .step = update, .gradient_scale = gradient_scale});
    }
    assembly.sync->publish_weights(unit, Traffic::kParameters);
  }
}

// One result a sequence; `losses` [tokens].
void sum_sequences(Stream& stream, const Tensor& losses, std::span<EvalResult> sequences) {
  const std::int64_t length = losses.numel() / static_cast<std::int64_t>(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * length;
    sequences[i].loss_sum = ops::sum(stream, losses.slice(0, first, length));
  }
}

std::vector<EvalResult> counted_sequences(std::span<const std::int32_t> targets, std::int64_t seq_len) {
  const auto length = static_cast<std::size_t>(seq_len);
  std::vector<EvalResult> sequences(targets.size() / length);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].unmasked_tokens = count_unmasked(targets.subspan(i * length, length));
  }
  return sequences;
}

// Forward passes alone.
class EvaluationWork final : public PipelineWork {
 public:
  EvaluationWork(Assembly& assembly, const HostBatch& batch, std::vector<EvalResult>& results)
      : assembly_(assembly), batch_(batch), results_(results) {
    for (int piece = 0; piece < assembly.model->pieces(); ++piece) {
      acquires_.push_back(assembly.model->acquires_of(Transformer::Pass::kEvaluation, piece));
    }
  }

  void forward(int piece, std::int64_t index, const Tensor& in, const Tensor& out) override {
    assembly_.sync->begin_evaluation(acquires_[static_cast<std::size_t>(piece)]);
    Context ctx = assembly_.evaluation_context();
    const ArenaScope scope(ctx.saved);
    Transformer::MicroBatch micro;
    micro.shape = assembly_.micro_batch_shape();
    micro.tokens = assembly_.tokens;
    micro.targets = assembly_.targets;
    load(assembly_.stream, batch_.tokens, index, micro.tokens);
    load(assembly_.stream, batch_.targets, index, micro.targets);
    assembly_.model->evaluate(ctx, piece, micro, in, out);
    if (!micro.losses.defined()) return;
    const auto sequences = static_cast<std::size_t>(micro.shape.batch);
    sum_sequences(assembly_.stream, micro.losses,
                  std::span(results_).subspan(static_cast<std::size_t>(index) * sequences, sequences));
  }
  void backward(int, std::int64_t, const Tensor&, const Tensor&) override {}
  void backward_weight(int, std::int64_t) override {}

 private:
  Assembly& assembly_;
  const HostBatch& batch_;
  std::vector<EvalResult>& results_;
  std::vector<std::vector<int>> acquires_;  // by piece
};

}  // namespace

StepResult train_step(Assembly& assembly, const HostBatch& batch, double lr, std::int64_t update,
                      const StepOptions& options) {
  StepResult result;
  if (assembly.loss_scaler) result.loss_scale = assembly.loss_scaler->scale();
  const double loss_scale = result.loss_scale.value_or(1.0);
  result.unmasked_tokens = count_unmasked_of_all(assembly, batch);
  const std::vector<double> losses = compute_gradients(assembly, batch, loss_scale, options.at_phase, result);
  share_losses(assembly, losses, options.wishes_to_stop && options.wishes_to_stop(), result);

  Stopwatch watch;
  const double squares = [&] {
    const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "gradient norm");
    return combine_unit_sums(assembly.squares->sums(assembly.stream, *assembly.groups.replicas),
                             assembly.norm_place, *assembly.groups.control);
  }();
  result.grad_norm = std::sqrt(squares) / loss_scale;
  const TrainConfig& train = assembly.config().train;
  const std::optional<BadStep> bad =
      judge(result.loss, result.grad_norm, spike_threshold(train, options.norms));
  const bool overflow = bad && bad->reason != BadStepReason::kSpike && assembly.loss_scaler;
  if (bad && !overflow) throw BadStepError(*bad, train);
  if (assembly.loss_scaler) result.skipped = !assembly.loss_scaler->update(!overflow);
  if (!result.skipped) {
    const float clip = clip_coefficient(result.grad_norm, train.grad_clip);
    apply_update(assembly, lr, update, static_cast<float>(clip / loss_scale));
  }
  result.optimizer_seconds = watch.lap();
  return result;
}

std::vector<EvalResult> eval_step(Assembly& assembly, const HostBatch& batch) {
  const BatchShape shape = assembly.micro_batch_shape();
  std::vector<EvalResult> results = counted_sequences(batch.targets, shape.seq);
  const std::vector<PipelineAction> order =
      assembly.evaluation_order(static_cast<std::int64_t>(results.size()) / shape.batch);
  EvaluationWork work(assembly, batch, results);
  assembly.executor->run(order, work, Traffic::kEvaluation);
  return results;
}

std::vector<EvalResult> evaluate_micro_batch(const Transformer& model, Context& ctx, BatchShape shape,
                                             const HostBatch& batch, const Tensor& tokens,
                                             const Tensor& targets) {
  const ArenaScope scope(ctx.saved);
  load(ctx.stream, batch.tokens, 0, tokens);
  load(ctx.stream, batch.targets, 0, targets);
  Transformer::MicroBatch micro;
  micro.shape = shape;
  micro.tokens = tokens;
  micro.targets = targets;
  model.evaluate(ctx, 0, micro, {}, {});
  std::vector<EvalResult> results = counted_sequences(batch.targets, shape.seq);
  sum_sequences(ctx.stream, micro.losses, results);
  return results;
}

}  // namespace meshtrain
