// One optimizer step over a global batch: the heart of training.
#pragma once

#include <cstdint>
#include <span>

#include "train/assembly.h"

namespace meshtrain {

// A global batch in host memory: [global_batch, seq] in sample order.
struct GlobalBatch {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;
};

struct StepResult {
  double loss = 0.0;       // sum of token losses over the unmasked tokens of the global batch
  double grad_norm = 0.0;  // global, before clipping
  bool skipped = false;    // fp16 overflow: weights and optimizer state are untouched
  std::int64_t unmasked_tokens = 0;
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double optimizer_seconds = 0.0;
};

// `update` counts applied updates from 1, this one included. Throws RunError when the loss or the
// gradient norm is not finite (outside fp16, whose overflows are skipped); weights are then untouched.
StepResult train_step(Assembly& assembly, const GlobalBatch& batch, double lr, std::int64_t update);

struct EvalResult {
  double loss_sum = 0.0;
  std::int64_t unmasked_tokens = 0;
};

// Losses of one micro-batch in `batch`, which is copied to `tokens` and `targets` on the device; nothing
// of the model changes.
EvalResult evaluate_micro_batch(const Transformer& model, Context& ctx, BatchShape shape,
                                const GlobalBatch& batch, const Tensor& tokens, const Tensor& targets);
EvalResult eval_step(Assembly& assembly, const GlobalBatch& micro_batch);

}  // namespace meshtrain
