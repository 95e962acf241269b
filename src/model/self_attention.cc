#include "model/self_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/cut.h"
#include "ops/attention.h"
#include "ops/rope.h"
#include "ops/transfer.h"

namespace meshtrain {

namespace {

// Which of the key and value heads a rank has: its place among as many parts as there are, and how many ranks
// have the same.
struct KeyValuePart {
  TensorPart part;
  ParamCopies copies;
};
KeyValuePart key_value_part(const ModelSpec& spec, const TensorPart& part) {
  if (part.ranks <= spec.kv_heads) return {.part = part, .copies = {}};
  const int heads = static_cast<int>(spec.kv_heads);
  const int ranks = part.ranks / heads;
  return {.part = {.ranks = heads, .rank = part.rank / ranks},
          .copies = {.ranks = ranks, .first = part.rank % ranks == 0, .partial = true}};
}

}  // namespace

SelfAttention::SelfAttention(const ModelSpec& spec, ParamStore& store, const std::string& prefix,
                             const Tensor& cos_sin, const TensorPart& part)
    : heads_(spec.heads / part.ranks),
      kv_heads_(std::max<std::int64_t>(spec.kv_heads / part.ranks, 1)),
      head_dim_(spec.head_dim),
      cos_sin_(cos_sin) {
  check(spec.heads % part.ranks == 0 && (spec.kv_heads % part.ranks == 0 || part.ranks % spec.kv_heads == 0),
        "attention is cut into whole heads");
  declare_qkv(spec, store, prefix, part);
  if (spec.qk_norm) {
    for (auto* norm : {&q_norm_, &k_norm_}) {
      const std::string name = norm == &q_norm_ ? "q_norm.weight" : "k_norm.weight";
      // A rank sees the gradients of its heads only.
      const ParamRef weight = store.declare(copied(
          {.name = prefix + name, .shape = {head_dim_}, .init = Init::kOnes, .decay = false}, part, true));
      norm->emplace(weight, ParamRef(), spec.norm_eps);
    }
  }
  // Residual projections start smaller, so that the residual stream's variance does not grow with
  // depth (Radford et al. 2019, section 2.3).
  const double residual = spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers));
  const ParamRef out_weight = store.declare(
      cut({.name = prefix + "o.weight", .shape = {spec.hidden, spec.heads * head_dim_}, .deviation = residual},
          1, part));
  ParamRef out_bias;
  if (spec.arch == Architecture::kGpt2) {
    out_bias = store.declare(
        copied({.name = prefix + "o.bias", .shape = {spec.hidden}, .init = Init::kZeros, .decay = false}, part,
               part.sequence_parallel));
  }
  out_ = RowLinear(out_weight, out_bias);
}

void SelfAttention::declare_qkv(const ModelSpec& spec, ParamStore& store, const std::string& prefix,
                                const TensorPart& part) {
  const KeyValuePart shared = key_value_part(spec, part);
  const auto declare = [&](const ParamDecl& query, const ParamDecl& key, const ParamDecl& value) {
    std::vector<ParamDecl> decls = {cut(query, 0, part), cut(key, 0, shared.part), cut(value, 0, shared.part)};
    decls[1].copies = decls[2].copies = shared.copies;
    return store.declare_fused(std::move(decls));
  };
  const std::int64_t q = spec.heads * head_dim_;
  const std::int64_t kv = spec.kv_heads * head_dim_;
  const double deviation = spec.init_std;
  const ParamRef weight =
      declare({.name = prefix + "q.weight", .shape = {q, spec.hidden}, .deviation = deviation},
              {.name = prefix + "k.weight", .shape = {kv, spec.hidden}, .deviation = deviation},
              {.name = prefix + "v.weight", .shape = {kv, spec.hidden}, .deviation = deviation});
  ParamRef bias;
  if (spec.arch == Architecture::kGpt2 || spec.qkv_bias) {
    bias = declare({.name = prefix + "q.bias", .shape = {q}, .init = Init::kZeros, .decay = false},
                   {.name = prefix + "k.bias", .shape = {kv}, .init = Init::kZeros, .decay = false},
                   {.name = prefix + "v.bias", .shape = {kv}, .init = Init::kZeros, .decay = false});
  }
  qkv_ = Linear(weight, bias);
}

Tensor SelfAttention::columns_as_heads(BatchShape shape, const Tensor& x, std::int64_t begin,
                                       std::int64_t heads) const {
  return x.slice(1, begin, heads * head_dim_).split(0, shape.batch, shape.seq).split(2, heads, head_dim_);
}

SelfAttention::Heads SelfAttention::split_heads(BatchShape shape, const Tensor& qkv) const {
  const std::int64_t q = heads_ * head_dim_;
  const std::int64_t kv = kv_heads_ * head_dim_;
  return {.q = columns_as_heads(shape, qkv, 0, heads_),
          .k = columns_as_heads(shape, qkv, q, kv_heads_),
          .v = columns_as_heads(shape, qkv, q + kv, kv_heads_)};
}

SelfAttention::Heads SelfAttention::attention_operands(BatchShape shape, const Saved& saved) const {
  Heads heads = split_heads(shape, saved.qkv);
  if (q_norm_) {
    heads.q = columns_as_heads(shape, saved.qk, 0, heads_);
    heads.k = columns_as_heads(shape, saved.qk, heads_ * head_dim_, kv_heads_);
  }
  return heads;
}

SelfAttention::Heads SelfAttention::project(Context& ctx, BatchShape shape, const Tensor& x,
                                            std::int64_t first_position, Saved& saved, Arena& arena) const {
  saved.qkv = arena.allocate(x.dtype(), {shape.tokens(), qkv_.out()});
  qkv_.forward(ctx, x, saved.qkv);
  if (q_norm_) {
    saved.qk = arena.allocate(x.dtype(), {shape.tokens(), (heads_ + kv_heads_) * head_dim_});
    const Heads raw = split_heads(shape, saved.qkv);
    const Heads normed = attention_operands(shape, saved);
    q_norm_->forward(ctx, raw.q, normed.q, saved.q_norm, arena);
    k_norm_->forward(ctx, raw.k, normed.k, saved.k_norm, arena);
  }
  const Heads heads = attention_operands(shape, saved);
  if (cos_sin_.defined()) {
    const Tensor positions = cos_sin_.slice(0, first_position, shape.seq);
    ops::rope(ctx.stream, heads.q, positions, ops::RopeDirection::kForward);
    ops::rope(ctx.stream, heads.k, positions, ops::RopeDirection::kForward);
  }
  return heads;
}

void SelfAttention::attend(Context& ctx, BatchShape shape, const Heads& heads, const Tensor& o,
                           const Tensor& lse) const {
  ops::attention_forward(ctx.stream, {.q = heads.q,
                                      .k = heads.k,
                                      .v = heads.v,
                                      .o = columns_as_heads(shape, o, 0, heads_),
                                      .lse = lse,
                                      .scale = 1.0F / std::sqrt(static_cast<float>(head_dim_))});
}

Tensor SelfAttention::forward_core(Context& ctx, BatchShape shape, const Tensor& x, bool keep_output,
                                   Saved& saved) const {
  const Heads heads = project(ctx, shape, x, 0, saved, ctx.saved);
  Arena& arena = keep_output ? ctx.saved : ctx.work;
  const Tensor o = arena.allocate(x.dtype(), {shape.tokens(), heads_ * head_dim_});
  const Tensor lse = arena.allocate(DType::kF32, {shape.batch, heads_, shape.seq});
  attend(ctx, shape, heads, o, lse);
  saved.o = keep_output ? o : Tensor();
  saved.lse = keep_output ? lse : Tensor();
  return o;
}

Tensor SelfAttention::forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_output,
                              Saved& saved) const {
  const Tensor y = ctx.work.allocate(x.dtype(), {shape.tokens(), out_.out()});
  const ArenaScope scope(ctx.work);
  out_.forward(ctx, forward_core(ctx, shape, x, keep_output, saved), y);
  return y;
}

Tensor SelfAttention::forward_cached(Context& ctx, BatchShape shape, const Tensor& x, KvCache& cache) const {
  check(ctx.tensor.alone(), "text is generated by a rank alone");
  const Tensor y = ctx.work.allocate(x.dtype(), {shape.tokens(), out_.out()});
  const ArenaScope scope(ctx.work);
  Saved scratch;
  const Heads fresh = project(ctx, shape, x, cache.used, scratch, ctx.work);
  ops::copy(ctx.stream, fresh.k, cache.keys.slice(1, cache.used, shape.seq));
  ops::copy(ctx.stream, fresh.v, cache.values.slice(1, cache.used, shape.seq));
  cache.used += shape.seq;
  const Tensor o = ctx.work.allocate(x.dtype(), {shape.tokens(), heads_ * head_dim_});
  attend(ctx, shape,
         {.q = fresh.q, .k = cache.keys.slice(1, 0, cache.used), .v = cache.values.slice(1, 0, cache.used)}, o,
         {});
  out_.forward(ctx, o, y);
  return y;
}

Tensor SelfAttention::backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dy,
                                     Arena& dx_arena, Gradients& grads) const {
  const Heads heads = attention_operands(shape, saved);
  const Shape o_shape = {shape.tokens(), heads_ * head_dim_};
  grads.o = saved.o.defined() ? saved.o : ctx.kept.allocate(dy.dtype(), o_shape);
  grads.d_qkv = ctx.kept.allocate(dy.dtype(), saved.qkv.shape());
  if (q_norm_) grads.d_qk = ctx.kept.allocate(dy.dtype(), saved.qk.shape());
  const Tensor dx = dx_arena.allocate(dy.dtype(), {shape.tokens(), qkv_.in()});
  const ArenaScope scope(ctx.work);

  Tensor lse = saved.lse;
  if (!saved.o.defined()) {
    lse = ctx.work.allocate(DType::kF32, {shape.batch, heads_, shape.seq});
    attend(ctx, shape, heads, grads.o, lse);
  }
  const Tensor d_o = ctx.work.allocate(dy.dtype(), o_shape);
  out_.backward_input(ctx, dy, d_o);
  const Heads d_raw = split_heads(shape, grads.d_qkv);
  Heads d_heads = d_raw;
  if (q_norm_) {
    d_heads.q = columns_as_heads(shape, grads.d_qk, 0, heads_);
    d_heads.k = columns_as_heads(shape, grads.d_qk, heads_ * head_dim_, kv_heads_);
  }
  ops::attention_backward(ctx.stream, {.q = heads.q,
                                       .k = heads.k,
                                       .v = heads.v,
                                       .o = columns_as_heads(shape, grads.o, 0, heads_),
                                       .lse = lse,
                                       .d_o = columns_as_heads(shape, d_o, 0, heads_),
                                       .dq = d_heads.q,
                                       .dk = d_heads.k,
                                       .dv = d_heads.v,
                                       .scale = 1.0F / std::sqrt(static_cast<float>(head_dim_))});
  if (cos_sin_.defined()) {
    const Tensor positions = cos_sin_.slice(0, 0, shape.seq);
    ops::rope(ctx.stream, d_heads.q, positions, ops::RopeDirection::kBackward);
    ops::rope(ctx.stream, d_heads.k, positions, ops::RopeDirection::kBackward);
  }
  if (q_norm_) {
    q_norm_->backward_input(ctx, saved.q_norm, d_heads.q, {}, d_raw.q);
    k_norm_->backward_input(ctx, saved.k_norm, d_heads.k, {}, d_raw.k);
  }
  qkv_.backward_input(ctx, grads.d_qkv, dx);
  return dx;
}

void SelfAttention::backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& x,
                                    const SharedRows& dy, const Gradients& grads) const {
  out_.backward_weight(ctx, grads.o, dy);
  if (q_norm_) {
    q_norm_->backward_weight(ctx, saved.q_norm, columns_as_heads(shape, grads.d_qk, 0, heads_));
    k_norm_->backward_weight(ctx, saved.k_norm,
                             columns_as_heads(shape, grads.d_qk, heads_ * head_dim_, kv_heads_));
  }
  qkv_.backward_weight(ctx, x, grads.d_qkv);
}

}  // namespace meshtrain
