// Rotary position embedding (Su et al. 2021), in the half-split layout of Llama: element i of the
// first half of a head turns with element i of the second half.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

enum class RopeDirection { kForward, kBackward };

// Turns x[B, T, heads, D] in place (strided; fp32, bf16, fp16). cos_sin: fp32 [T, D] of the
// positions of x: D/2 cosines, then D/2 sines. Backward turns the other way, which is the transpose.
void rope(Stream& stream, const Tensor& x, const Tensor& cos_sin, RopeDirection direction);

}  // namespace meshtrain::ops
