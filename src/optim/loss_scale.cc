#include "optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace meshtrain {

LossScaler::LossScaler(double initial_scale, std::int64_t window) : window_(window) {
  if (!(initial_scale >= kSmallest) || !std::isfinite(static_cast<float>(initial_scale))) {
    throw_user_error("precision.loss_scale = {} is out of range: it must be a finite number of at least {}.",
                     initial_scale, kSmallest);
  }
  if (window < 1) {
    throw_user_error("precision.loss_scale_window = {} is out of range: it must be at least 1.", window);
  }
  state_.scale = initial_scale;
}

bool LossScaler::update(bool gradients_finite) {
  if (!gradients_finite) {
    if (state_.scale * 0.5 < kSmallest) {
      throw_run_error(
          "The gradients are not finite even with a loss scale of {}: the run has diverged. Lower "
          "optimizer.lr, "
          "lengthen optimizer.warmup, or train with precision.compute = \"bf16\".",
          state_.scale);
    }
    state_ = {state_.scale * 0.5, 0};
    return false;
  }
  if (++state_.good_steps >= window_) {
    state_.good_steps = 0;
    if (state_.scale * 2.0 <= kLargest) state_.scale *= 2.0;
  }
  return true;
}

void LossScaler::restore(const State& state) {
  if (!(state.scale >= kSmallest) || !std::isfinite(state.scale) || state.good_steps < 0) {
    throw_run_error(
        "The checkpoint's loss scale {} after {} good steps is not possible: it is damaged. Resume from "
        "another checkpoint.",
        state.scale, state.good_steps);
  }
  state_ = state;
}

float clip_coefficient(double norm, double max_norm) {
  if (max_norm == 0.0) return 1.0F;
  // PyTorch divides by a tensor as a product with its reciprocal.
  const float reciprocal = 1.0F / (static_cast<float>(norm) + 1e-6F);
  return std::min(1.0F, reciprocal * static_cast<float>(max_norm));
}

}  // namespace meshtrain
