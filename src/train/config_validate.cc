#include "train/config_validate.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/nearest.h"
#include "train/config_limits.h"
#include "train/mesh_rules.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr double kMostHours = 1e12;

void require_below_one(std::string_view key, double value) {
  if (!(value >= 0.0 && value < 1.0)) {
    throw_user_error("{} = {} is not possible: it must be at least 0 and below 1.", key, value);
  }
}

void validate_batch(const Config& config) {
  const TrainConfig& train = config.train;
  constexpr std::int64_t kMostSequences = 1 << 30;
  require_between("data.seq_len", config.data.seq_len, 1, 1 << 30);
  if (config.data.seq_len > config.model.context) {
    throw_user_error(
        "data.seq_len = {} is longer than the model's context, model.context = {}. Use a data.seq_len of at "
        "most {}, or set model.context = {}.",
        config.data.seq_len, config.model.context, config.model.context, config.data.seq_len);
  }
  require_between("train.steps", train.steps, 1, kMostSteps);
  require_between("train.global_batch", train.global_batch, 1, kMostSequences);
  require_between("train.micro_batch", train.micro_batch, 1, kMostSequences);
  if (train.global_batch % train.micro_batch != 0) {
    const std::int64_t below = train.global_batch / train.micro_batch * train.micro_batch;
    throw_user_error(
        "train.global_batch = {} is not a multiple of train.micro_batch = {}. With this micro_batch use a "
        "global_batch of {}{}; with this global_batch a micro_batch of {}.",
        train.global_batch, train.micro_batch, below > 0 ? fmt::format("{} or ", below) : "",
        below + train.micro_batch, divisors_around(train.global_batch, train.micro_batch));
  }
  // Positions in the data are 64-bit counts of tokens.
  const double tokens = static_cast<double>(train.steps) * static_cast<double>(train.global_batch) *
                        static_cast<double>(config.data.seq_len);
  if (tokens > 9e18) {
    throw_user_error(
        "train.steps = {} times train.global_batch = {} times data.seq_len = {} is {:.2g} tokens, more than a "
        "64-bit count holds. Make one of them smaller.",
        train.steps, train.global_batch, config.data.seq_len, tokens);
  }
}

void validate_train(const TrainConfig& train) {
  if (train.seed > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw_user_error("train.seed = {} is not possible: it must be below 2^63.", train.seed);
  }
  require_finite_from("train.grad_clip", train.grad_clip, 0.0);
  require_between("train.eval_every", train.eval_every, 0, kMostSteps);
  require_between("train.eval_tokens", train.eval_tokens, 0, std::numeric_limits<std::int64_t>::max());
  if (train.norm_spike != 0.0 && !(train.norm_spike > 1.0 && std::isfinite(train.norm_spike))) {
    throw_user_error("train.norm_spike = {} is not possible: it must be a number above 1, or 0 for off.",
                     train.norm_spike);
  }
  require_between("train.norm_spike_window", train.norm_spike_window, 1, 1000);
  require_between("train.max_rollbacks", train.max_rollbacks, 0, kMostSteps);
}

void validate_optimizer(const OptimizerConfig& optimizer, std::int64_t steps) {
  require_finite_from("optimizer.lr", optimizer.lr, 0.0);
  require_below_one("optimizer.betas", optimizer.betas[0]);
  require_below_one("optimizer.betas", optimizer.betas[1]);
  require_finite_from("optimizer.eps", optimizer.eps, 0.0);
  require_finite_from("optimizer.weight_decay", optimizer.weight_decay, 0.0);
  require_below_one("optimizer.momentum", optimizer.momentum);
  require_below_one("optimizer.alpha", optimizer.alpha);
  require_between("optimizer.warmup", optimizer.warmup, 0, kMostSteps);
  if (optimizer.warmup > steps) {
    throw_user_error(
        "optimizer.warmup = {} is longer than the run, train.steps = {}. Use a warmup of at most {}.",
        optimizer.warmup, steps, steps);
  }
  require_finite_from("optimizer.min_lr", optimizer.min_lr, 0.0);
  if (optimizer.min_lr > optimizer.lr) {
    throw_user_error("optimizer.min_lr = {} is above optimizer.lr = {}, which the schedule comes down from.",
                     optimizer.min_lr, optimizer.lr);
  }
  if (!(optimizer.decay_fraction >= 0.0 && optimizer.decay_fraction <= 1.0)) {
    throw_user_error("optimizer.decay_fraction = {} is not possible: it must be between 0 and 1.",
                     optimizer.decay_fraction);
  }
}

void validate_precision(const PrecisionConfig& precision) {
  if (precision.gradients != DType::kF32 && precision.gradients != precision.compute) {
    throw_user_error(
        "precision.gradients = \"{0}\" with precision.compute = \"{1}\": gradients are \"fp32\" or \"{1}\".",
        name_of(precision.gradients), name_of(precision.compute));
  }
  if (!(precision.loss_scale > 0.0) || !std::isfinite(static_cast<float>(precision.loss_scale))) {
    throw_user_error(
        "precision.loss_scale = {} is not possible: it must be a finite number above 0 (65536 is usual).",
        precision.loss_scale);
  }
  require_between("precision.loss_scale_window", precision.loss_scale_window, 1, kMostSteps);
}

void validate_rest(const Config& config) {
  if (config.reduction == "tree" && config.precision.gradients != DType::kF32) {
    throw_user_error(
        "numerics.reduction = \"tree\" with precision.gradients = \"{}\": each rounding would depend on the "
        "split of "
        "the batch. Use precision.gradients = \"fp32\", or numerics.reduction = \"fast\".",
        name_of(config.precision.gradients));
  }
  if (config.checkpoint.every != CheckpointConfig::kAuto) {
    require_between("checkpoint.every", config.checkpoint.every, 0, kMostSteps);
  }
  if (const double hours = config.checkpoint.mtbf_hours; !(hours >= 0.0 && hours <= kMostHours)) {
    throw_user_error("checkpoint.mtbf_hours = {} is not possible: it must be between 0 and {:g} hours.", hours,
                     kMostHours);
  }
  require_between("checkpoint.keep", config.checkpoint.keep, 0, kMostSteps);
  if (config.output.dir.empty()) throw_user_error("output.dir = \"\" names no folder; use \".\" for this one.");
  if (config.checkpoint.dir.empty())
    throw_user_error("checkpoint.dir = \"\" names no folder; use \".\" for this one.");
  require_between("machine.threads", config.machine.threads, 0, 1 << 16);
}

}  // namespace

void validate_but_vocabulary(const Config& config) {
  ModelSpec model = config.model;
  if (model.vocab == 0) model.vocab = 1;
  validate(model);
  validate_batch(config);
  validate_train(config.train);
  validate_optimizer(config.optimizer, config.train.steps);
  validate_precision(config.precision);
  check_mesh(config);
  validate_rest(config);
}

void validate(const Config& config) {
  validate(config.model);
  validate_but_vocabulary(config);
}

}  // namespace meshtrain
