#include "model/block.h"

#include "ops/elementwise.h"

namespace meshtrain {

Norm make_norm(const ModelSpec& spec, ParamStore& store, const std::string& prefix) {
  const ParamRef weight =
      store.declare({.name = prefix + "weight", .shape = {spec.hidden}, .init = Init::kOnes, .decay = false});
  ParamRef bias;
  if (spec.arch == Architecture::kGpt2) {
    bias =
        store.declare({.name = prefix + "bias", .shape = {spec.hidden}, .init = Init::kZeros, .decay = false});
  }
  return Norm(weight, bias, spec.norm_eps);
}

Block::Block(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const Tensor& cos_sin)
    : norm1_(make_norm(spec, store, prefix + "norm1.")),
      attention_(spec, store, prefix + "attn.", cos_sin),
      norm2_(make_norm(spec, store, prefix + "norm2.")),
      feed_forward_(spec, store, prefix + "mlp.") {}

// Everything before the feed-forward; returns its input.
Tensor Block::forward_to_feed_forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_attention,
                                      Saved& saved) const {
  saved.x = x;
  const Tensor y1 = ctx.saved.allocate(x.dtype(), x.shape());
  norm1_.forward(ctx, x, y1, saved.norm1, ctx.saved);
  const Tensor middle = ctx.saved.allocate(x.dtype(), x.shape());
  const Tensor y2 = ctx.saved.allocate(x.dtype(), x.shape());
  const ArenaScope scope(ctx.work);
  const Tensor attended = attention_.forward(ctx, shape, y1, keep_attention, saved.attention);
  norm2_.forward_add(ctx, x, attended, middle, y2, saved.norm2, ctx.saved);
  return y2;
}

void Block::forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_attention, const Tensor& out,
                    Saved& saved) const {
  const Tensor y2 = forward_to_feed_forward(ctx, shape, x, keep_attention, saved);
  const ArenaScope scope(ctx.work);
  const Tensor fed = feed_forward_.forward(ctx, y2, saved.feed_forward);
  ops::add(ctx.stream, saved.norm2.x, fed, out);
}

void Block::forward_again(Context& ctx, BatchShape shape, const Tensor& x, Saved& saved) const {
  const Tensor y2 = forward_to_feed_forward(ctx, shape, x, true, saved);
  feed_forward_.forward_core(ctx, y2, saved.feed_forward);
}

void Block::forward_cached(Context& ctx, BatchShape shape, const Tensor& x, KvCache& cache,
                           const Tensor& out) const {
  const ArenaScope work_scope(ctx.work);
  const ArenaScope saved_scope(ctx.saved);
  Saved saved;
  const Tensor y = ctx.work.allocate(x.dtype(), x.shape());
  norm1_.forward(ctx, x, y, saved.norm1, ctx.work);
  const Tensor attended = attention_.forward_cached(ctx, shape, y, cache);
  const Tensor middle = ctx.work.allocate(x.dtype(), x.shape());
  norm2_.forward_add(ctx, x, attended, middle, y, saved.norm2, ctx.work);
  ops::add(ctx.stream, middle, feed_forward_.forward(ctx, y, saved.feed_forward), out);
}

void Block::backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout,
                           const Tensor& dx, Gradients& grads) const {
  grads.d_norm2 = feed_forward_.backward_input(ctx, saved.feed_forward, dout, grads.feed_forward);
  const Tensor d_middle = ctx.work.allocate(dout.dtype(), dout.shape());
  norm2_.backward_input(ctx, saved.norm2, grads.d_norm2, dout, d_middle);
  grads.d_norm1 = attention_.backward_input(ctx, shape, saved.attention, d_middle, grads.attention);
  norm1_.backward_input(ctx, saved.norm1, grads.d_norm1, d_middle, dx);
}

void Block::backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Gradients& grads) const {
  feed_forward_.backward_weight(ctx, saved.feed_forward, grads.feed_forward);
  norm2_.backward_weight(ctx, saved.norm2, grads.d_norm2);
  attention_.backward_weight(ctx, shape, saved.attention, grads.attention);
  norm1_.backward_weight(ctx, saved.norm1, grads.d_norm1);
}

}  // namespace meshtrain
