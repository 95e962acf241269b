// The factories in the table of optimizer.cc. Settings are already checked.
#pragma once

#include <memory>

#include "ops/optimizer_update.h"
#include "optim/optimizer.h"

namespace meshtrain::optim {

using Factory = std::unique_ptr<const Optimizer> (*)(const OptimizerSettings& settings);

std::unique_ptr<const Optimizer> make_sgd(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_momentum(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_nesterov(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_adagrad(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_rmsprop(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_adam(const OptimizerSettings& settings);
std::unique_ptr<const Optimizer> make_adamw(const OptimizerSettings& settings);

// The tensors of a span as an update takes them.
inline ops::UpdateTensors update_tensors(const ParameterSpan& span, const StepInfo& info) {
  return {span.master, span.gradient, span.weight, info.gradient_scale};
}

}  // namespace meshtrain::optim
