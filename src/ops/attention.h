// Causal attention with an online softmax over tiles (Milakov & Gimelshein 2018; Dao et al. 2022):
// no matrix of seq x seq is ever held. Grouped queries: head h reads kv head h / (heads / kv_heads).
//
// q, o, do, dq: [B, Tq, heads, D]; k, v, dk, dv: [B, Tk, kv_heads, D]; all of one dtype (fp32, bf16,
// fp16), strided as slices of a fused projection are. Query i sees keys 0 .. i + (Tk - Tq), so
// decoding with a cache is the same call. Products are accumulated in fp32.
// lse: fp32 [B, heads, Tq], the log of each row's softmax denominator (scores scaled).
// The result does not depend on the number of threads. Scratch is about 1 MiB a thread forward, at most
// about 6 MiB backward.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

struct AttentionForward {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor o;    // output
  Tensor lse;  // output; optional when no backward pass follows
  float scale = 1.0F;
};
void attention_forward(Stream& stream, const AttentionForward& args);

struct AttentionBackward {
  Tensor q;
  Tensor k;
  Tensor v;
  Tensor o;
  Tensor lse;
  Tensor d_o;
  Tensor dq;  // outputs, overwritten
  Tensor dk;
  Tensor dv;
  float scale = 1.0F;
};
// Tq must equal Tk.
void attention_backward(Stream& stream, const AttentionBackward& args);

}  // namespace meshtrain::ops
