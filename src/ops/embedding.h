// Token and position embedding. tokens: int32 [M], M = B·T in batch order, not negative.
//
// A table [V, H] holds the rows of ids [first_id, first_id + V), for one may be cut into shards of a
// vocabulary. An id that it does not hold has a row of zeros, and its gradient goes nowhere: the outputs of all
// shards add up to that of the whole table.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// out[M, H] = table[tokens] (+ positions[first_position + m % seq], when defined), rounded once.
// table [V, H], positions [context, H] and out share a dtype (fp32, bf16, fp16).
void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out,
                       std::int64_t first_id = 0);

// dtable[V, H] += rows of dout by token, of ids that it holds; dtable is fp32 or of dout's dtype. The additions
// to a row happen in batch order, whatever the number of threads, in fp32, and the row is rounded once a call,
// however often its token occurs.
void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable,
                        std::int64_t first_id = 0);

// dpositions[context, H] += rows of dout by position, as above.
void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions);

}  // namespace meshtrain::ops
