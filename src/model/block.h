// One pre-norm transformer block: x + attention(norm1(x)), then + feed_forward(norm2(·)).
//
// Between tensor-parallel ranks it says what is exchanged and when: each half gathers its input (inner layout,
// shard/tensor/tensor_group.h), and the sum of its outputs leads back to the outer layout, in which x and out
// are. That makes one exchange there and one back for each half and direction: an all-reduce, or with sequence
// parallelism a gather and a reduce-scatter of as many bytes.
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
    Tensor x;  // input [outer rows, hidden]
    NormSaved norm1;
    SharedRows y1;  // output of norm1
    SelfAttention::Saved attention;
    NormSaved norm2;
    SharedRows y2;
    FeedForward::Saved feed_forward;
  };
  struct Gradients {
    SharedRows d_out;     // of the feed-forward's output
    Tensor d_norm2;       // of norm2's output
    SharedRows d_middle;  // of the attention's output
    Tensor d_norm1;
    SelfAttention::Gradients attention;
    FeedForward::Gradients feed_forward;
  };

  // Declares its parameters under `prefix` ("layers.3.").
  Block(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const Tensor& cos_sin,
        const TensorPart& part = {});

  // out [outer rows, hidden] = block(x). What the backward pass needs is left in `saved`, in ctx.saved.
  // With `keep_all` false (selective recompute) that leaves out the attention output, which is computed again,
  // and rows of other ranks, which are gathered again.
  void forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_all, const Tensor& out,
               Saved& saved) const;
  // Fills `saved` from x alone, with the bits that forward had and nothing left out: for recompute.
  void forward_again(Context& ctx, BatchShape shape, const Tensor& x, Saved& saved) const;
  // For a rank alone.
  void forward_cached(Context& ctx, BatchShape shape, const Tensor& x, KvCache& cache, const Tensor& out) const;

  // dx [outer rows, hidden] from dout, and the gradients of the weights; dx may not alias dout. Sums over ranks
  // run in the background while gradients of weights are computed. Nothing stays in ctx.work or ctx.kept.
  void backward(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout, const Tensor& dx) const;

  // The same in two parts, the second possibly much later: until then `saved`, dout and what `grads` refers to
  // in ctx.kept must stay.
  void backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout, const Tensor& dx,
                      Gradients& grads) const;
  void backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Gradients& grads) const;

 private:
  void forward_to_feed_forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_all,
                               Saved& saved) const;

  Norm norm1_;
  SelfAttention attention_;
  Norm norm2_;
  FeedForward feed_forward_;
};

// Declares a norm's weight, and its bias where the architecture has one.
Norm make_norm(const ModelSpec& spec, ParamStore& store, const std::string& prefix,
               const TensorPart& part = {});

}  // namespace meshtrain
