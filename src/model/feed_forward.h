// The feed-forward half of a block: up projection, GELU or SwiGLU, down projection.
//
// Between tensor-parallel ranks each has F of the spec's ffn_hidden columns of the middle: inputs are inner
// (shard/tensor/tensor_group.h), outputs partial sums of all tokens.
#pragma once

#include "model/context.h"
#include "model/linear.h"
#include "model/spec.h"

namespace meshtrain {

class FeedForward {
 public:
  struct Saved {
    Tensor pre;  // before the non-linearity: [tokens, F], or gate and up [tokens, 2F]
    Tensor act;  // after it [tokens, F]
  };
  struct Gradients {
    Tensor d_pre;  // like Saved::pre
  };

  FeedForward() = default;
  // Declares its parameters under `prefix` ("layers.3.mlp."). ffn_hidden must be a multiple of the ranks.
  FeedForward(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const TensorPart& part = {});

  // Returns partial y [tokens, hidden], in ctx.work.
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  // As forward, without the last projection: what recompute needs.
  void forward_core(Context& ctx, const Tensor& x, Saved& saved) const;
  // Returns partial dx [tokens, hidden], in `dx_arena`; `grads` lies in ctx.kept.
  Tensor backward_input(Context& ctx, const Saved& saved, const Tensor& dy, Arena& dx_arena,
                        Gradients& grads) const;
  void backward_weight(Context& ctx, const Saved& saved, const Tensor& x, const SharedRows& dy,
                       const Gradients& grads) const;

 private:
  bool gated_ = false;
  Linear up_;  // gate and up fused when gated
  RowLinear down_;
};

}  // namespace meshtrain
