#include "model/rope_table.h"

#include <cmath>
#include <numbers>

namespace meshtrain {
namespace {

// Wavelengths beyond the original context are stretched by `factor`, short ones stay, and those
// between are blended linearly in (context / wavelength).
double scaled_frequency(double frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1.0) return frequency;
  const double turns = static_cast<double>(scaling.original_context) * frequency / (2.0 * std::numbers::pi);
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

std::vector<float> rope_table(const ModelSpec& spec, std::int64_t positions) {
  const std::int64_t half = spec.head_dim / 2;
  std::vector<float> table(static_cast<std::size_t>(positions * spec.head_dim));
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim);
    const double frequency = scaled_frequency(std::pow(spec.rope_theta, -exponent), spec.rope_scaling);
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      table[static_cast<std::size_t>(t * spec.head_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<std::size_t>(t * spec.head_dim + half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace meshtrain
