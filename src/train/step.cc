#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/stopwatch.h"
#include "base/trace.h"
#include "comm/agreement.h"
#include "gradsync/gradient_norm.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/transfer.h"

namespace meshtrain {
namespace {

std::int64_t count_unmasked(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t != ops::kIgnoredTarget; });
}

Transformer::MicroBatch load_micro_batch(Stream& stream, BatchShape shape, const HostBatch& batch,
                                         std::int64_t index, const Tensor& tokens, const Tensor& targets) {
  const auto count = static_cast<std::size_t>(shape.tokens());
  const std::size_t begin = static_cast<std::size_t>(index) * count;
  ops::copy_from_host(stream, batch.tokens.subspan(begin, count).data(), tokens);
  ops::copy_from_host(stream, batch.targets.subspan(begin, count).data(), targets);
  Transformer::MicroBatch micro;
  micro.shape = shape;
  micro.tokens = tokens;
  micro.targets = targets;
  return micro;
}

// Gradients of the global batch's mean loss times `loss_scale`, in the store's owned gradients. Returns the sum
// of token losses of each micro-batch of this rank.
std::vector<double> compute_gradients(Assembly& assembly, const HostBatch& batch, double loss_scale,
                                      StepResult& result) {
  std::vector<double> loss_sums;
  // A fully masked batch has no loss and no gradient.
  const double per_token = loss_scale / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));
  const BatchShape shape = assembly.micro_batch_shape();
  const std::int64_t micro_steps = static_cast<std::int64_t>(batch.tokens.size()) / shape.tokens();
  for (std::int64_t i = 0; i < micro_steps; ++i) {
    Stopwatch watch;
    const ArenaScope scope(assembly.saved);
    Context ctx = assembly.context();
    assembly.sync->begin_micro_step(i);
    Transformer::MicroBatch micro =
        load_micro_batch(assembly.stream, shape, batch, i, assembly.tokens, assembly.targets);
    {
      const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "forward {}", i);
      assembly.model->forward(ctx, micro, static_cast<float>(per_token));
      loss_sums.push_back(ops::sum(assembly.stream, micro.losses));
    }
    result.forward_seconds += watch.lap();
    {
      const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "backward {}", i);
      assembly.model->backward(ctx, micro);
    }
    result.backward_seconds += watch.lap();
  }
  const Stopwatch watch;
  assembly.sync->finish_gradients();
  result.backward_seconds += watch.seconds();
  return loss_sums;
}

// The loss of the global batch, summed in the order of its micro-batches; and whether anybody wishes to stop.
void gather_losses(Communicator& ranks, std::vector<double> own, bool wishes_to_stop, StepResult& result) {
  own.push_back(wishes_to_stop ? 1.0 : 0.0);
  const std::size_t length = own.size();
  std::vector<double> all(length * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(Tensor(own.data(), DType::kF64, {static_cast<std::int64_t>(length)}),
                   Tensor(all.data(), DType::kF64, {static_cast<std::int64_t>(all.size())}));
  double sum = 0.0;
  for (std::size_t i = 0; i + 1 < length; ++i) {
    for (std::size_t rank = 0; rank * length < all.size(); ++rank) sum += all[rank * length + i];
  }
  for (std::size_t end = length; end <= all.size(); end += length)
    result.stop = result.stop || all[end - 1] > 0.0;
  result.loss = sum / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));
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

}  // namespace

StepResult train_step(Assembly& assembly, const HostBatch& batch, double lr, std::int64_t update,
                      const std::function<bool()>& wishes_to_stop) {
  StepResult result;
  Communicator& control = *assembly.groups.control;
  const double loss_scale = assembly.loss_scaler ? assembly.loss_scaler->scale() : 1.0;
  result.unmasked_tokens = sum_of_ranks(control, count_unmasked(batch.targets), Traffic::kControl);
  std::vector<double> losses = compute_gradients(assembly, batch, loss_scale, result);
  gather_losses(control, std::move(losses), wishes_to_stop(), result);

  Stopwatch watch;
  const double squares = [&] {
    const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "gradient norm");
    return gradient_square_sum(assembly.stream, assembly.params, control);
  }();
  result.grad_norm = std::sqrt(squares) / loss_scale;
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (assembly.loss_scaler) {
    result.skipped = !assembly.loss_scaler->update(finite);
  } else if (!finite) {
    throw_run_error(
        "the loss ({}) or the gradient norm ({}) is not finite, and the update was not applied; lower "
        "optimizer.lr, "
        "lengthen optimizer.warmup, set train.grad_clip, or look for damaged data in this step's samples",
        result.loss, result.grad_norm);
  }
  if (!result.skipped) {
    const float clip = clip_coefficient(result.grad_norm, assembly.config().train.grad_clip);
    apply_update(assembly, lr, update, static_cast<float>(clip / loss_scale));
  }
  result.optimizer_seconds = watch.lap();
  return result;
}

EvalResult evaluate_micro_batch(const Transformer& model, Context& ctx, BatchShape shape,
                                const HostBatch& batch, const Tensor& tokens, const Tensor& targets) {
  const ArenaScope scope(ctx.saved);
  Transformer::MicroBatch micro = load_micro_batch(ctx.stream, shape, batch, 0, tokens, targets);
  model.evaluate(ctx, micro);
  return {.loss_sum = ops::sum(ctx.stream, micro.losses), .unmasked_tokens = count_unmasked(batch.targets)};
}

EvalResult eval_step(Assembly& assembly, const HostBatch& micro_batch) {
  Context ctx = assembly.context();
  assembly.sync->begin_evaluation();
  return evaluate_micro_batch(*assembly.model, ctx, assembly.micro_batch_shape(), micro_batch, assembly.tokens,
                              assembly.targets);
}

}  // namespace meshtrain
