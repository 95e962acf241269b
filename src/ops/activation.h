// The feed-forward non-linearities. All tensors are matrices of one dtype (fp32, bf16, fp16) whose
// rows may be strided; arithmetic is fp32.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, the tanh form).
void gelu_forward(Stream& stream, const Tensor& x, const Tensor& y);
// dx = dy * gelu'(x); dx may alias dy.
void gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dx);

// y[M, F] = silu(gate) * up, where gate_up[M, 2F] holds gate in its first F columns (Shazeer 2020).
void swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& y);
void swiglu_backward(Stream& stream, const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up);

}  // namespace meshtrain::ops
