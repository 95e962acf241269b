#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/cross_entropy.h"

namespace meshtrain::ops::reference {
namespace {

constexpr double kCubic = 0.044715;
const double kRoot = std::sqrt(2.0 / std::numbers::pi);

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

struct RowStats {
  double mean;
  double scale;
};

RowStats row_stats(NormKind kind, double epsilon, const double* x, std::size_t width) {
  const auto n = static_cast<double>(width);
  double mean = 0.0;
  if (kind == NormKind::kLayerNorm) {
    for (std::size_t i = 0; i < width; ++i) mean += x[i] / n;
  }
  double square = 0.0;
  for (std::size_t i = 0; i < width; ++i) square += (x[i] - mean) * (x[i] - mean) / n;
  return {mean, 1.0 / std::sqrt(square + epsilon)};
}

}  // namespace

Values gelu(const Values& x) {
  Values y;
  for (const double v : x) {
    const double u = kRoot * (v + kCubic * v * v * v);
    // 0.5 (1 + tanh u), which cancels for u < 0, is the sigmoid of 2u.
    y.push_back(v * sigmoid(2.0 * u));
  }
  return y;
}

Values gelu_backward(const Values& x, const Values& dy) {
  Values dx;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double u = kRoot * (v + kCubic * v * v * v);
    const double u_slope = kRoot * (1.0 + 3.0 * kCubic * v * v);
    dx.push_back(dy[i] * (sigmoid(2.0 * u) + v * sigmoid(2.0 * u) * sigmoid(-2.0 * u) * 2.0 * u_slope));
  }
  return dx;
}

Values swiglu(const Values& gate_up, std::size_t width) {
  Values y;
  for (std::size_t row = 0; row < gate_up.size(); row += 2 * width) {
    for (std::size_t i = 0; i < width; ++i) {
      const double gate = gate_up[row + i];
      y.push_back(gate * sigmoid(gate) * gate_up[row + width + i]);
    }
  }
  return y;
}

Values swiglu_backward(const Values& gate_up, const Values& dy, std::size_t width) {
  Values d(gate_up.size());
  for (std::size_t row = 0; row < gate_up.size(); row += 2 * width) {
    for (std::size_t i = 0; i < width; ++i) {
      const double gate = gate_up[row + i];
      const double up = gate_up[row + width + i];
      const double g = dy[row / 2 + i];
      d[row + i] = g * up * sigmoid(gate) * (1.0 + gate * sigmoid(-gate));
      d[row + width + i] = g * gate * sigmoid(gate);
    }
  }
  return d;
}

NormResult norm(NormKind kind, double epsilon, const Values& x, const Values& gamma, const Values& beta) {
  const std::size_t width = gamma.size();
  NormResult result;
  for (std::size_t row = 0; row < x.size(); row += width) {
    const RowStats stats = row_stats(kind, epsilon, x.data() + row, width);
    if (kind == NormKind::kLayerNorm) result.stats.push_back(stats.mean);
    result.stats.push_back(stats.scale);
    for (std::size_t i = 0; i < width; ++i) {
      const double shift = beta.empty() ? 0.0 : beta[i];
      result.y.push_back((x[row + i] - stats.mean) * stats.scale * gamma[i] + shift);
    }
  }
  return result;
}

Values norm_backward_input(NormKind kind, double epsilon, const Values& x, const Values& gamma,
                           const Values& dy) {
  const std::size_t width = gamma.size();
  const auto n = static_cast<double>(width);
  Values dx(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    const RowStats stats = row_stats(kind, epsilon, x.data() + row, width);
    double mean_g = 0.0;
    double mean_gx = 0.0;
    for (std::size_t i = 0; i < width; ++i) {
      const double g = dy[row + i] * gamma[i];
      if (kind == NormKind::kLayerNorm) mean_g += g / n;
      mean_gx += g * (x[row + i] - stats.mean) * stats.scale / n;
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double normal = (x[row + i] - stats.mean) * stats.scale;
      dx[row + i] = stats.scale * (dy[row + i] * gamma[i] - mean_g - normal * mean_gx);
    }
  }
  return dx;
}

NormWeightGradient norm_backward_weight(NormKind kind, double epsilon, const Values& x, const Values& dy,
                                        std::size_t width) {
  NormWeightGradient d{Values(width), Values(width)};
  for (std::size_t row = 0; row < x.size(); row += width) {
    const RowStats stats = row_stats(kind, epsilon, x.data() + row, width);
    for (std::size_t i = 0; i < width; ++i) {
      d.dgamma[i] += dy[row + i] * (x[row + i] - stats.mean) * stats.scale;
      d.dbeta[i] += dy[row + i];
    }
  }
  return d;
}

Values column_sum(const Values& x, std::size_t width) {
  Values sum(width);
  for (std::size_t i = 0; i < x.size(); ++i) sum[i % width] += x[i];
  return sum;
}

Values rope(const Values& x, const Values& cos_sin, std::size_t heads, std::size_t head_dim,
            RopeDirection direction) {
  const std::size_t half = head_dim / 2;
  const std::size_t seq = cos_sin.size() / head_dim;
  Values y(x.size());
  for (std::size_t row = 0; row < x.size() / head_dim; ++row) {
    const std::size_t t = row / heads % seq;
    for (std::size_t i = 0; i < half; ++i) {
      const double c = cos_sin[t * head_dim + i];
      const double s = cos_sin[t * head_dim + half + i] * (direction == RopeDirection::kForward ? 1.0 : -1.0);
      const double a = x[row * head_dim + i];
      const double b = x[row * head_dim + half + i];
      y[row * head_dim + i] = a * c - b * s;
      y[row * head_dim + half + i] = b * c + a * s;
    }
  }
  return y;
}

Values embedding(const Ids& tokens, const Values& table, const Values& positions, std::size_t width,
                 std::size_t seq, std::size_t first_position) {
  Values out;
  for (std::size_t m = 0; m < tokens.size(); ++m) {
    for (std::size_t i = 0; i < width; ++i) {
      const double token = table[static_cast<std::size_t>(tokens[m]) * width + i];
      out.push_back(token + (positions.empty() ? 0.0 : positions[(first_position + m % seq) * width + i]));
    }
  }
  return out;
}

Values embedding_backward(const Ids& tokens, const Values& dout, const Values& dtable, std::size_t width) {
  Values d = dtable;
  for (std::size_t m = 0; m < tokens.size(); ++m) {
    for (std::size_t i = 0; i < width; ++i) {
      d[static_cast<std::size_t>(tokens[m]) * width + i] += dout[m * width + i];
    }
  }
  return d;
}

CrossEntropyResult cross_entropy(const Values& logits, const Ids& targets, std::size_t width, std::size_t vocab,
                                 double scale) {
  CrossEntropyResult result{Values(targets.size()), Values(logits.size())};
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == kIgnoredTarget) continue;
    const double* x = logits.data() + r * width;
    const double high = *std::max_element(x, x + vocab);
    double sum = 0.0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - high);
    const auto target = static_cast<std::size_t>(targets[r]);
    result.losses[r] = std::log(sum) + high - x[target];
    for (std::size_t i = 0; i < vocab; ++i) {
      result.dlogits[r * width + i] = scale * (std::exp(x[i] - high) / sum - (i == target ? 1.0 : 0.0));
    }
  }
  return result;
}

}  // namespace meshtrain::ops::reference
