// Dynamic loss scaling for fp16 (Micikevicius et al. 2018, section 3.2) and gradient clipping: the two
// factors that StepInfo::gradient_scale is made of.
//
// The loss is multiplied by the scale before the backward pass. When a gradient then is infinite or NaN,
// the update is skipped and the scale halved; after `window` updates in a row without that, it is doubled.
#pragma once

#include <cstdint>

namespace meshtrain {

class LossScaler {
 public:
  // Doubling stops here: beyond it nothing is gained, and loss times scale would near the end of fp16.
  static constexpr double kLargest = 0x1p24;
  // When gradients overflow even so, the run has diverged.
  static constexpr double kSmallest = 0x1p-14;

  // What a checkpoint keeps.
  struct State {
    double scale = 1.0;
    std::int64_t good_steps = 0;  // updates applied since the scale last changed
    friend bool operator==(const State&, const State&) = default;
  };

  // A power of two keeps scaling and unscaling exact. `window` >= 1.
  LossScaler(double initial_scale, std::int64_t window);

  double scale() const { return state_.scale; }

  // To be called once a step, with whether all gradients are finite; gives back whether to apply the
  // update, and sets the scale of the next step. Throws RunError when the scale cannot fall any further.
  bool update(bool gradients_finite);

  const State& state() const { return state_; }
  // Throws RunError for a state that update() never leaves.
  void restore(const State& state);

 private:
  std::int64_t window_;
  State state_;
};

// What gradients of norm `norm` are multiplied by so that their norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), in fp32, the same bits as torch.nn.utils.clip_grad_norm_ for the same
// fp32 norm. `max_norm` 0 is no clipping. A norm that is not finite is for the caller to refuse first.
float clip_coefficient(double norm, double max_norm);

}  // namespace meshtrain
