// RMSProp (Tieleman & Hinton 2012, lecture 6.5), not centred, with optional momentum of the scaled gradient.
#include "optim/rules.h"

namespace meshtrain::optim {
namespace {

constexpr std::array<std::string_view, 2> kStates = {"square_average", "velocity"};

class RmsProp final : public Optimizer {
 public:
  explicit RmsProp(const OptimizerSettings& s)
      : alpha_(s.alpha), epsilon_(s.eps), weight_decay_(s.weight_decay), momentum_(s.momentum) {}

  std::string_view name() const override { return "rmsprop"; }

  std::span<const std::string_view> state_names() const override {
    return std::span(kStates).first(momentum_ == 0.0 ? 1 : 2);
  }

  void step(Stream& stream, const ParameterSpan& span, const StepInfo& info) const override {
    ops::rmsprop_update(stream, update_tensors(span, info), span.states[0],
                        momentum_ == 0.0 ? Tensor() : span.states[1],
                        {.lr = info.lr,
                         .alpha = alpha_,
                         .epsilon = epsilon_,
                         .weight_decay = span.decay ? weight_decay_ : 0.0,
                         .momentum = momentum_});
  }

 private:
  double alpha_;
  double epsilon_;
  double weight_decay_;
  double momentum_;
};

}  // namespace

std::unique_ptr<const Optimizer> make_rmsprop(const OptimizerSettings& s) {
  return std::make_unique<RmsProp>(s);
}

}  // namespace meshtrain::optim
