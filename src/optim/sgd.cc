// Stochastic gradient descent: plain, with heavy-ball momentum (Polyak 1964; Sutskever et al. 2013 as
// torch.optim.SGD writes it: the velocity is a sum of gradients and the rate multiplies it last), and with
// Nesterov's look-ahead.
#include "optim/rules.h"

namespace meshtrain::optim {
namespace {

constexpr std::array<std::string_view, 1> kVelocity = {"velocity"};

class Sgd final : public Optimizer {
 public:
  Sgd(std::string_view name, double momentum, bool nesterov, double weight_decay)
      : name_(name), momentum_(momentum), nesterov_(nesterov), weight_decay_(weight_decay) {}

  std::string_view name() const override { return name_; }

  std::span<const std::string_view> state_names() const override {
    return std::span(kVelocity).first(momentum_ == 0.0 ? 0 : 1);
  }

  void step(Stream& stream, const ParameterSpan& span, const StepInfo& info) const override {
    ops::sgd_update(stream, update_tensors(span, info), momentum_ == 0.0 ? Tensor() : span.states[0],
                    {.lr = info.lr,
                     .momentum = momentum_,
                     .weight_decay = span.decay ? weight_decay_ : 0.0,
                     .nesterov = nesterov_,
                     .first_step = info.step == 1});
  }

 private:
  std::string_view name_;
  double momentum_;
  bool nesterov_;
  double weight_decay_;
};

}  // namespace

std::unique_ptr<const Optimizer> make_sgd(const OptimizerSettings& s) {
  return std::make_unique<Sgd>("sgd", 0.0, false, s.weight_decay);
}

std::unique_ptr<const Optimizer> make_momentum(const OptimizerSettings& s) {
  return std::make_unique<Sgd>("momentum", s.momentum, false, s.weight_decay);
}

// Without momentum there is nothing to look ahead along.
std::unique_ptr<const Optimizer> make_nesterov(const OptimizerSettings& s) {
  return std::make_unique<Sgd>("nesterov", s.momentum, s.momentum != 0.0, s.weight_decay);
}

}  // namespace meshtrain::optim
