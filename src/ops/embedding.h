// Token and position embedding. tokens: int32 [M], M = B·T in batch order, ids below V.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// out[M, H] = table[tokens] (+ positions[first_position + m % seq], when defined), rounded once.
// table [V, H], positions [context, H] and out share a dtype (fp32, bf16, fp16).
void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out);

// dtable[V, H] += rows of dout by token; dtable is fp32 or of dout's dtype. The additions to a row happen in
// batch order, whatever the number of threads, in fp32, and the row is rounded once a call, however often its
// token occurs.
void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable);

// dpositions[context, H] += rows of dout by position, as above.
void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions);

}  // namespace meshtrain::ops
