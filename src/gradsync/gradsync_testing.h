// What tests of sums over ranks and micro-batches share.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/philox.h"

namespace meshtrain::testing {

// Element i of a gradient: of many magnitudes, so that every order of additions shows.
inline float gradient_value(const RandomStream& random, std::int64_t i) {
  return static_cast<float>(random.normal(static_cast<std::uint64_t>(i)) *
                            std::pow(10.0, static_cast<double>(i % 7) - 3.0));
}

// Neighbours are added until one value is left.
inline float tree_sum(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      next.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    }
    values = next;
  }
  return values.front();
}

}  // namespace meshtrain::testing
