// Matrix products and the bias gradient that goes with them.
//
// Products are accumulated in fp32 and rounded once to the output's dtype, after what is there was added when
// they accumulate. The result does not
// depend on the number of threads: the output is cut into tiles by its shape alone, and a tile's inner
// dimension is summed in order.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

struct MatmulOptions {
  bool transpose_a = false;  // a is stored [K, M]
  bool transpose_b = false;  // b is stored [N, K]
  bool accumulate = false;   // c += a·b instead of c = a·b
};

// c[M, N] (+)= a[M, K] · b[K, N] (+ bias[N], broadcast over rows, when defined).
// a and b: one dtype of fp32, bf16, fp16; c: that dtype or fp32. bias: a's dtype or fp32; not with
// accumulate. All are matrices whose rows may be strided. Overlap of c with a or b is not allowed.
void matmul(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& c, const MatmulOptions& options,
            const Tensor& bias = {});

// out[N] (+)= sum over rows of x[M, N]; out is fp32 or of x's dtype. Rows are summed in fp32, in fixed blocks,
// in order; the result is rounded once.
void column_sum(Stream& stream, const Tensor& x, const Tensor& out, bool accumulate);

}  // namespace meshtrain::ops
