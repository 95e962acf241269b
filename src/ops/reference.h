// What the operations compute, written for clarity: plain loops in double over row-major vectors. The
// tests compare every back end with these; nothing else uses them.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/norm.h"
#include "ops/rope.h"

namespace meshtrain::ops::reference {

using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

Values gelu(const Values& x);
Values gelu_backward(const Values& x, const Values& dy);
// gate_up: rows of 2 * width; y, dy: rows of `width`.
Values swiglu(const Values& gate_up, std::size_t width);
Values swiglu_backward(const Values& gate_up, const Values& dy, std::size_t width);

struct NormResult {
  Values y;
  Values stats;
};
// `beta` is empty for RMSNorm; the width of a row is gamma's.
NormResult norm(NormKind kind, double epsilon, const Values& x, const Values& gamma, const Values& beta);
Values norm_backward_input(NormKind kind, double epsilon, const Values& x, const Values& gamma,
                           const Values& dy);
struct NormWeightGradient {
  Values dgamma;
  Values dbeta;
};
NormWeightGradient norm_backward_weight(NormKind kind, double epsilon, const Values& x, const Values& dy,
                                        std::size_t width);

Values column_sum(const Values& x, std::size_t width);

// x: [batch, seq, heads, head_dim]; cos_sin: [seq, head_dim].
Values rope(const Values& x, const Values& cos_sin, std::size_t heads, std::size_t head_dim,
            RopeDirection direction);

// `positions` may be empty.
Values embedding(const Ids& tokens, const Values& table, const Values& positions, std::size_t width,
                 std::size_t seq, std::size_t first_position);
// table + the gradient.
Values embedding_backward(const Ids& tokens, const Values& dout, const Values& dtable, std::size_t width);

struct CrossEntropyResult {
  Values losses;
  Values dlogits;
};
CrossEntropyResult cross_entropy(const Values& logits, const Ids& targets, std::size_t width, std::size_t vocab,
                                 double scale);

}  // namespace meshtrain::ops::reference
