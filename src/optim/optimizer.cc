#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/nearest.h"
#include "optim/rules.h"

namespace meshtrain {
namespace {

struct Entry {
  std::string_view name;
  optim::Factory make;
};

constexpr std::array kTable = {
    Entry{"sgd", optim::make_sgd},           Entry{"momentum", optim::make_momentum},
    Entry{"nesterov", optim::make_nesterov}, Entry{"adagrad", optim::make_adagrad},
    Entry{"rmsprop", optim::make_rmsprop},   Entry{"adam", optim::make_adam},
    Entry{"adamw", optim::make_adamw},
};

void check_fraction(std::string_view key, double value) {
  if (value >= 0.0 && value < 1.0) return;
  throw_user_error("optimizer.{} = {} is out of range: it must be at least 0 and less than 1.", key, value);
}

void check_not_negative(std::string_view key, double value) {
  if (value >= 0.0 && std::isfinite(value)) return;
  throw_user_error("optimizer.{} = {} is out of range: it must be a finite number, 0 or more.", key, value);
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kTable) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<const Optimizer> make_optimizer(const OptimizerSettings& settings) {
  const auto* const found =
      std::find_if(kTable.begin(), kTable.end(), [&](const Entry& e) { return e.name == settings.name; });
  if (found == kTable.end()) {
    const std::vector<std::string> names = optimizer_names();
    throw_user_error("optimizer.name = \"{}\" is not an optimizer{}. There are: {}.", settings.name,
                     nearest_hint(settings.name, names), fmt::join(names, ", "));
  }
  for (const double beta : settings.betas) check_fraction("betas", beta);
  check_fraction("momentum", settings.momentum);
  check_fraction("alpha", settings.alpha);
  check_not_negative("eps", settings.eps);
  check_not_negative("weight_decay", settings.weight_decay);
  return found->make(settings);
}

}  // namespace meshtrain
