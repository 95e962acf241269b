// One pre-norm transformer block: x + attention(norm1(x)), then + feed_forward(norm2(·)).
#pragma once

#include <string>

#include "model/feed_forward.h"
#include "model/norm.h"
#include "model/self_attention.h"
#include "model/spec.h"

namespace meshtrain {

class Block {
 public:
  struct Saved {
    Tensor x;  // input [tokens, hidden]
    NormSaved norm1;
    SelfAttention::Saved attention;
    NormSaved norm2;
    FeedForward::Saved feed_forward;
  };
  struct Gradients {
    Tensor d_norm1;  // gradient of norm1's output
    Tensor d_norm2;
    SelfAttention::Gradients attention;
    FeedForward::Gradients feed_forward;
  };

  // Declares its parameters under `prefix` ("layers.3.").
  Block(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const Tensor& cos_sin);

  // out [tokens, hidden] = block(x). What the backward pass needs is left in `saved`, in ctx.saved;
  // without the attention output when keep_attention is false.
  void forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_attention, const Tensor& out,
               Saved& saved) const;
  // Fills `saved` from x alone, with the bits that forward had: for recompute.
  void forward_again(Context& ctx, BatchShape shape, const Tensor& x, Saved& saved) const;
  void forward_cached(Context& ctx, BatchShape shape, const Tensor& x, KvCache& cache, const Tensor& out) const;

  // dx [tokens, hidden] from dout; may not alias it. `grads` lies in ctx.work.
  void backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout, const Tensor& dx,
                      Gradients& grads) const;
  void backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Gradients& grads) const;

 private:
  Tensor forward_to_feed_forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_attention,
                                 Saved& saved) const;

  Norm norm1_;
  SelfAttention attention_;
  Norm norm2_;
  FeedForward feed_forward_;
};

// Declares a norm's weight, and its bias where the architecture has one.
Norm make_norm(const ModelSpec& spec, ParamStore& store, const std::string& prefix);

}  // namespace meshtrain
