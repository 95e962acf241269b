#include "ops/reference_attention.h"

#include <cmath>

namespace meshtrain::ops::reference {

AttentionResult attention(const AttentionShape& s, const AttentionInputs& in) {
  AttentionResult r;
  r.o.resize(in.q.size());
  r.lse.assign(s.batch * s.heads * s.queries, -INFINITY);
  r.weights.resize(r.lse.size() * s.keys);
  s.for_each_score([&](auto b, auto h, auto i, auto j) {
    double score = 0.0;
    for (std::size_t d = 0; d < s.size; ++d) score += in.q[s.q_at(b, i, h) + d] * in.k[s.k_at(b, j, h) + d];
    r.weights[s.score_at(b, h, i, j)] = score * s.scale;
    double& lse = r.lse[s.row_at(b, h, i)];
    const double high = std::fmax(lse, score * s.scale);
    lse = high + std::log(std::exp(lse - high) + std::exp(score * s.scale - high));
  });
  s.for_each_score([&](auto b, auto h, auto i, auto j) {
    double& weight = r.weights[s.score_at(b, h, i, j)];
    weight = std::exp(weight - r.lse[s.row_at(b, h, i)]);
    for (std::size_t d = 0; d < s.size; ++d) r.o[s.q_at(b, i, h) + d] += weight * in.v[s.k_at(b, j, h) + d];
  });
  return r;
}

AttentionGradients attention_backward(const AttentionShape& s, const AttentionInputs& in,
                                      const AttentionResult& forward, const std::vector<double>& d_o) {
  AttentionGradients g;
  g.dq.resize(in.q.size());
  g.dk.resize(in.k.size());
  g.dv.resize(in.v.size());
  g.d_scores.resize(forward.weights.size());
  s.for_each_score([&](auto b, auto h, auto i, auto j) {
    const std::size_t q = s.q_at(b, i, h);
    const std::size_t k = s.k_at(b, j, h);
    const double weight = forward.weights[s.score_at(b, h, i, j)];
    double d_weight = 0.0;
    double delta = 0.0;  // the sum over all keys of weight * d_weight
    for (std::size_t d = 0; d < s.size; ++d) {
      d_weight += d_o[q + d] * in.v[k + d];
      delta += d_o[q + d] * forward.o[q + d];
    }
    const double d_score = weight * (d_weight - delta);
    g.d_scores[s.score_at(b, h, i, j)] = d_score;
    for (std::size_t d = 0; d < s.size; ++d) {
      g.dv[k + d] += weight * d_o[q + d];
      g.dq[q + d] += d_score * s.scale * in.k[k + d];
      g.dk[k + d] += d_score * s.scale * in.q[q + d];
    }
  });
  return g;
}

}  // namespace meshtrain::ops::reference
