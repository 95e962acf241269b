// Adam (Kingma & Ba 2015), whose weight decay is an L2 term of the gradient, and AdamW (Loshchilov & Hutter
// 2019), whose decay shrinks the parameter itself.
#include "optim/rules.h"

namespace meshtrain::optim {
namespace {

constexpr std::array<std::string_view, 2> kStates = {"m", "v"};

class Adam final : public Optimizer {
 public:
  Adam(const OptimizerSettings& s, bool decoupled)
      : betas_(s.betas), epsilon_(s.eps), weight_decay_(s.weight_decay), decoupled_(decoupled) {}

  std::string_view name() const override { return decoupled_ ? "adamw" : "adam"; }
  std::span<const std::string_view> state_names() const override { return kStates; }

  void step(Stream& stream, const ParameterSpan& span, const StepInfo& info) const override {
    ops::adam_update(stream, update_tensors(span, info), span.states[0], span.states[1],
                     {.lr = info.lr,
                      .beta1 = betas_[0],
                      .beta2 = betas_[1],
                      .epsilon = epsilon_,
                      .weight_decay = span.decay ? weight_decay_ : 0.0,
                      .decoupled = decoupled_,
                      .step = info.step});
  }

 private:
  std::array<double, 2> betas_;
  double epsilon_;
  double weight_decay_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<const Optimizer> make_adam(const OptimizerSettings& s) {
  return std::make_unique<Adam>(s, false);
}

std::unique_ptr<const Optimizer> make_adamw(const OptimizerSettings& s) {
  return std::make_unique<Adam>(s, true);
}

}  // namespace meshtrain::optim
