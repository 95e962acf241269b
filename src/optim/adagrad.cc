// Adagrad (Duchi, Hazan & Singer 2011), without decay of the rate beyond the schedule's.
#include "optim/rules.h"

namespace meshtrain::optim {
namespace {

constexpr std::array<std::string_view, 1> kStates = {"sum"};

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const OptimizerSettings& s) : epsilon_(s.eps), weight_decay_(s.weight_decay) {}

  std::string_view name() const override { return "adagrad"; }
  std::span<const std::string_view> state_names() const override { return kStates; }

  void step(Stream& stream, const ParameterSpan& span, const StepInfo& info) const override {
    ops::adagrad_update(stream, update_tensors(span, info), span.states[0],
                        {.lr = info.lr,
                         .weight_decay = span.decay ? weight_decay_ : 0.0,
                         .epsilon = epsilon_,
                         .step = info.step});
  }

 private:
  double epsilon_;
  double weight_decay_;
};

}  // namespace

std::unique_ptr<const Optimizer> make_adagrad(const OptimizerSettings& s) {
  return std::make_unique<Adagrad>(s);
}

}  // namespace meshtrain::optim
