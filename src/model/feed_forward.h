// The feed-forward half of a block: up projection, GELU or SwiGLU, down projection.
#pragma once

#include "model/context.h"
#include "model/linear.h"
#include "model/spec.h"

namespace meshtrain {

class FeedForward {
 public:
  struct Saved {
    Tensor x;    // input [tokens, hidden]
    Tensor pre;  // before the non-linearity: [tokens, F], or gate and up [tokens, 2F]
    Tensor act;  // after it [tokens, F]
  };
  struct Gradients {
    Tensor dy;     // gradient of the output
    Tensor d_pre;  // like Saved::pre
  };

  FeedForward() = default;
  // Declares its parameters under `prefix` ("layers.3.mlp.").
  FeedForward(const ModelSpec& spec, ParamStore& store, const std::string& prefix);

  // Returns y [tokens, hidden], in ctx.work.
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  // As forward, without the last projection: what recompute needs.
  void forward_core(Context& ctx, const Tensor& x, Saved& saved) const;
  // dx and everything in `grads` lie in ctx.work until the caller releases them.
  Tensor backward_input(Context& ctx, const Saved& saved, const Tensor& dy, Gradients& grads) const;
  void backward_weight(Context& ctx, const Saved& saved, const Gradients& grads) const;

 private:
  bool gated_ = false;
  Linear up_;  // gate and up fused when gated
  Linear down_;
};

}  // namespace meshtrain
