// How a lost rank is told: with the step in which it was missed.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "comm/communicator.h"

namespace meshtrain {

// Does `action`, part of training step `step` or of what follows it: a rank that misses another there says at
// which step.
template <class Action>
auto naming_step(std::int64_t step, const Action& action) {
  try {
    return action();
  } catch (const CommError& error) {
    throw CommError(fmt::format("step {}: {}", step, error.what()));
  }
}

}  // namespace meshtrain
