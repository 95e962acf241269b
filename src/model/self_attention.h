// Causal self-attention: fused QKV projection, optional QK-norm and RoPE, attention, output projection.
//
// Between tensor-parallel ranks each has whole heads: heads / ranks of the queries with the key and value heads
// that they read, which neighbouring ranks share where there are fewer of them than ranks. Inputs are inner
// (shard/tensor/tensor_group.h), outputs partial sums of all tokens. "heads" below are those of this rank.
#pragma once

#include <optional>

#include "model/context.h"
#include "model/linear.h"
#include "model/norm.h"
#include "model/spec.h"

namespace meshtrain {

// Keys and values of earlier positions, for generation: [batch, positions, kv_heads, head_dim].
struct KvCache {
  Tensor keys;
  Tensor values;
  std::int64_t used = 0;  // positions filled
};

class SelfAttention {
 public:
  struct Saved {
    Tensor qkv;  // projection [tokens, (heads + 2·kv_heads)·head_dim]; q and k rotated unless QK-norm
    Tensor qk;   // QK-norm only: normed and rotated q and k [tokens, (heads + kv_heads)·head_dim]
    NormSaved q_norm;
    NormSaved k_norm;
    Tensor o;    // attention output [tokens, heads·head_dim]; undefined when recomputed
    Tensor lse;  // fp32 [batch, heads, seq]
  };
  // What backward_input leaves for backward_weight.
  struct Gradients {
    Tensor o;      // attention output, saved or recomputed
    Tensor d_qkv;  // [tokens, (heads + 2·kv_heads)·head_dim]
    Tensor d_qk;   // QK-norm only: gradient of the normed q and k
  };

  SelfAttention() = default;
  // Declares its parameters under `prefix` ("layers.3.attn."). cos_sin: fp32 [positions, head_dim], owned
  // by the caller; undefined for learned positions. The ranks must divide heads, and divide kv_heads or be a
  // multiple of them.
  SelfAttention(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const Tensor& cos_sin,
                const TensorPart& part = {});

  // Returns partial y [tokens, hidden], in ctx.work. With `keep_output` false the attention output is not
  // saved and backward_input recomputes it (selective recompute).
  Tensor forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_output, Saved& saved) const;
  // As forward up to the attention output, without the last projection: what recompute needs.
  Tensor forward_core(Context& ctx, BatchShape shape, const Tensor& x, bool keep_output, Saved& saved) const;
  // Appends to the cache and attends over it; nothing is kept for a backward pass. For a rank alone.
  Tensor forward_cached(Context& ctx, BatchShape shape, const Tensor& x, KvCache& cache) const;

  // Returns partial dx [tokens, hidden], in `dx_arena`; `grads` lies in ctx.kept.
  Tensor backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dy, Arena& dx_arena,
                        Gradients& grads) const;
  void backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& x,
                       const SharedRows& dy, const Gradients& grads) const;

 private:
  // Views [batch, seq, heads, head_dim] of the columns of a fused projection.
  struct Heads {
    Tensor q, k, v;
  };
  Heads split_heads(BatchShape shape, const Tensor& qkv) const;
  void declare_qkv(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const TensorPart& part);
  Tensor columns_as_heads(BatchShape shape, const Tensor& x, std::int64_t begin, std::int64_t heads) const;

  // Projection, QK-norm, RoPE at `first_position`; the q, k, v that attention reads.
  Heads project(Context& ctx, BatchShape shape, const Tensor& x, std::int64_t first_position, Saved& saved,
                Arena& arena) const;
  Heads attention_operands(BatchShape shape, const Saved& saved) const;
  void attend(Context& ctx, BatchShape shape, const Heads& heads, const Tensor& o, const Tensor& lse) const;

  std::int64_t heads_ = 0;
  std::int64_t kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
  Linear qkv_;
  RowLinear out_;
  std::optional<Norm> q_norm_;
  std::optional<Norm> k_norm_;
  Tensor cos_sin_;
};

}  // namespace meshtrain
