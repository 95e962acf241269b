#include "train/step.h"

#include <algorithm>
#include <cmath>

#include "base/stopwatch.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/square_sum.h"
#include "ops/transfer.h"

namespace meshtrain {
namespace {

std::int64_t count_unmasked(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t != ops::kIgnoredTarget; });
}

Transformer::MicroBatch load_micro_batch(Stream& stream, BatchShape shape, const GlobalBatch& batch,
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

// Gradients of the global batch's mean loss times `loss_scale`, and the sum of token losses.
double accumulate_gradients(Assembly& assembly, const GlobalBatch& batch, double loss_scale,
                            StepResult& result) {
  double loss_sum = 0.0;
  // A fully masked batch has no loss and no gradient.
  const double per_token = loss_scale / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));
  const BatchShape shape = assembly.micro_batch_shape();
  const std::int64_t micro_steps = static_cast<std::int64_t>(batch.tokens.size()) / shape.tokens();
  for (std::int64_t i = 0; i < micro_steps; ++i) {
    Stopwatch watch;
    const ArenaScope scope(assembly.saved);
    Context ctx = assembly.context(/*accumulate=*/i > 0);
    Transformer::MicroBatch micro =
        load_micro_batch(assembly.stream, shape, batch, i, assembly.tokens, assembly.targets);
    assembly.model->forward(ctx, micro, static_cast<float>(per_token));
    loss_sum += ops::sum(assembly.stream, micro.losses);
    result.forward_seconds += watch.lap();
    assembly.model->backward(ctx, micro);
    result.backward_seconds += watch.lap();
  }
  assembly.params.add_tied_gradients(assembly.stream);
  return loss_sum;
}

double gradient_norm(Assembly& assembly) {
  double squares = 0.0;
  for (const Param& param : assembly.params.params()) {
    squares += ops::sum_of_squares(assembly.stream, assembly.params.gradient(param).view({param.numel()}));
  }
  return std::sqrt(squares);
}

void apply_update(Assembly& assembly, double lr, std::int64_t update, float gradient_scale) {
  for (const Param& param : assembly.params.params()) {
    assembly.optimizer->step(assembly.stream, assembly.span_of(param),
                             {.lr = lr, .step = update, .gradient_scale = gradient_scale});
  }
}

}  // namespace

StepResult train_step(Assembly& assembly, const GlobalBatch& batch, double lr, std::int64_t update) {
  StepResult result;
  const double loss_scale = assembly.loss_scaler ? assembly.loss_scaler->scale() : 1.0;
  result.unmasked_tokens = count_unmasked(batch.targets);
  const double loss_sum = accumulate_gradients(assembly, batch, loss_scale, result);
  result.loss = loss_sum / static_cast<double>(std::max<std::int64_t>(result.unmasked_tokens, 1));

  Stopwatch watch;
  result.grad_norm = gradient_norm(assembly) / loss_scale;
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
                                const GlobalBatch& batch, const Tensor& tokens, const Tensor& targets) {
  const ArenaScope scope(ctx.saved);
  Transformer::MicroBatch micro = load_micro_batch(ctx.stream, shape, batch, 0, tokens, targets);
  model.evaluate(ctx, micro);
  return {.loss_sum = ops::sum(ctx.stream, micro.losses), .unmasked_tokens = count_unmasked(batch.targets)};
}

EvalResult eval_step(Assembly& assembly, const GlobalBatch& micro_batch) {
  Context ctx = assembly.context(/*accumulate=*/false);
  return evaluate_micro_batch(*assembly.model, ctx, assembly.micro_batch_shape(), micro_batch, assembly.tokens,
                              assembly.targets);
}

}  // namespace meshtrain
