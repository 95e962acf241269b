// What attention computes (ops/attention.h), written for clarity: plain loops in double over row-major
// vectors, with the full matrix of weights. Tests compare every back end with it; nothing else uses it.
#pragma once

#include <cstddef>
#include <vector>

namespace meshtrain::ops::reference {

struct AttentionShape {
  std::size_t batch = 1;
  std::size_t queries = 1;
  std::size_t keys = 1;
  std::size_t heads = 1;
  std::size_t kv_heads = 1;
  std::size_t size = 1;  // of a head
  double scale = 1.0;

  std::size_t q_at(std::size_t b, std::size_t i, std::size_t h) const {
    return ((b * queries + i) * heads + h) * size;
  }
  // Of the kv head that query head h reads.
  std::size_t k_at(std::size_t b, std::size_t j, std::size_t h) const {
    return ((b * keys + j) * kv_heads + h * kv_heads / heads) * size;
  }
  std::size_t row_at(std::size_t b, std::size_t h, std::size_t i) const {
    return (b * heads + h) * queries + i;
  }
  std::size_t score_at(std::size_t b, std::size_t h, std::size_t i, std::size_t j) const {
    return row_at(b, h, i) * keys + j;
  }
  std::size_t visible(std::size_t i) const { return i + keys - queries + 1; }

  // Calls visit(b, h, i, j) for every query i of every head and each key j that it sees.
  template <class Visit>
  void for_each_score(const Visit& visit) const {
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t i = 0; i < queries; ++i) {
          for (std::size_t j = 0; j < visible(i); ++j) visit(b, h, i, j);
        }
      }
    }
  }
};

struct AttentionInputs {
  std::vector<double> q, k, v;
};
struct AttentionResult {
  std::vector<double> o;
  std::vector<double> lse;
  std::vector<double> weights;  // [B, heads, Tq, Tk]
};
AttentionResult attention(const AttentionShape& shape, const AttentionInputs& in);

struct AttentionGradients {
  std::vector<double> dq, dk, dv;
  std::vector<double> d_scores;  // [B, heads, Tq, Tk], of the scaled scores
};
AttentionGradients attention_backward(const AttentionShape& shape, const AttentionInputs& in,
                                      const AttentionResult& forward, const std::vector<double>& d_o);

}  // namespace meshtrain::ops::reference
