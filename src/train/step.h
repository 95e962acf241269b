// One optimizer step over a global batch: the heart of training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "train/assembly.h"

namespace meshtrain {

// Samples in host memory: [sequences, seq].
struct HostBatch {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;
};

struct StepResult {
  double loss = 0.0;                 // sum of token losses over the unmasked tokens of the global batch
  double grad_norm = 0.0;            // global, before clipping
  bool skipped = false;              // fp16 overflow: weights and optimizer state are untouched
  std::optional<double> loss_scale;  // fp16: that this step was computed with
  std::int64_t unmasked_tokens = 0;  // of the global batch
  bool stop = false;                 // whether any rank wishes to stop
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double optimizer_seconds = 0.0;
};

struct StepOptions {
  std::function<bool()> wishes_to_stop = {};  // asked once; null: never
  std::span<const double> norms = {};         // gradient norms of the steps before, to tell a spike from
  // RunOptions::at_phase of this step.
  std::function<void(std::string_view phase)> at_phase = {};
};

// `batch`: this rank's micro-batches, one after the other (Assembly::micro_batch_index). `update` counts
// applied updates from 1, this one included. A collective call; the result is the same on every rank, but for
// the seconds. Throws BadStepError, on every rank alike, when the loss or the gradient norm is not finite
// (outside fp16, whose overflows are skipped) or the norm is a spike after those of `options`; weights,
// optimizer state and loss scale are then untouched, and another step may follow.
StepResult train_step(Assembly& assembly, const HostBatch& batch, double lr, std::int64_t update,
                      const StepOptions& options = {});

// Of one sequence.
struct EvalResult {
  double loss_sum = 0.0;  // in the order of its tokens, so that it does not depend on the micro-batch around it
  std::int64_t unmasked_tokens = 0;
};

// Losses of the sequences in `batch`, which are whole micro-batches one after the other; nothing of the model
// changes. With pipeline stages a collective call of a pipeline's ranks, and the loss sums are those of the
// last stage, 0 on the others.
std::vector<EvalResult> eval_step(Assembly& assembly, const HostBatch& batch);

// The same for one micro-batch on a rank that has the whole model; `tokens` and `targets` are its place on the
// device.
std::vector<EvalResult> evaluate_micro_batch(const Transformer& model, Context& ctx, BatchShape shape,
                                             const HostBatch& batch, const Tensor& tokens,
                                             const Tensor& targets);

}  // namespace meshtrain
