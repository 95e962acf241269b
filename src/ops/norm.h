// RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016) over the last dimension, with the
// residual addition that precedes them fused in. Statistics are fp32.
//
// Tensors named x, y, … are [.., H] of one dtype (fp32, bf16, fp16); leading dimensions are rows
// and may be strided. gamma and beta are [H] of the same dtype as x. `stats` is fp32 [rows, 1] for
// RMSNorm (reciprocal root mean square) and [rows, 2] for LayerNorm (mean, reciprocal deviation).
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

enum class NormKind { kRmsNorm, kLayerNorm };

constexpr std::int64_t stats_width(NormKind kind) {
  return kind == NormKind::kRmsNorm ? 1 : 2;
}

struct NormForward {
  NormKind kind = NormKind::kRmsNorm;
  float epsilon = 1e-5F;
  Tensor x;
  Tensor delta = {};  // optional: sum = x + delta (rounded to the dtype) is what is normalised
  Tensor sum = {};    // output, with delta only; may alias x or delta
  Tensor gamma;
  Tensor beta = {};  // LayerNorm only
  Tensor y;          // output; may alias x when delta is not given
  Tensor stats;      // output
};
void norm_forward(Stream& stream, const NormForward& args);

struct NormBackwardInput {
  NormKind kind = NormKind::kRmsNorm;
  Tensor x;  // what was normalised
  Tensor gamma;
  Tensor stats;
  Tensor dy;
  Tensor residual_gradient = {};  // optional: added to dx before rounding
  Tensor dx;                      // output; may alias dy or residual_gradient
};
void norm_backward_input(Stream& stream, const NormBackwardInput& args);

struct NormBackwardWeight {
  NormKind kind = NormKind::kRmsNorm;
  Tensor x;
  Tensor stats;
  Tensor dy;
  Tensor dgamma;      // [H]
  Tensor dbeta = {};  // [H], LayerNorm only
  bool accumulate = true;
};
// dgamma and dbeta are fp32 or x's dtype. Rows are summed in fp32, in fixed blocks, in order, whatever the
// number of threads; the sum, with accumulate added to what is there, is rounded once.
void norm_backward_weight(Stream& stream, const NormBackwardWeight& args);

}  // namespace meshtrain::ops
