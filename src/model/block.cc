#include "model/block.h"

#include "model/cut.h"
#include "ops/elementwise.h"

namespace meshtrain {
namespace {

// Releases temporaries above `mark`, unless what is kept lies among them.
void release_temporaries(Context& ctx, Arena::Mark mark) {
  if (&ctx.kept != &ctx.work) ctx.work.release(mark);
}

// Where a half leaves its partial dx, for the sum to be kept: with cut rows the sum is elsewhere.
Arena& partial_arena(Context& ctx) {
  return ctx.tensor.part().sequence_parallel ? ctx.work : ctx.kept;
}

// For one that lies in ctx.work: where its sum is kept. Else the sum is formed in place.
Tensor place_of_sum(Context& ctx, DType dtype, const Shape& shape) {
  return ctx.tensor.part().sequence_parallel ? ctx.kept.allocate(dtype, shape) : Tensor();
}

Tensor reduce_to(Context& ctx, const Tensor& partial, const Tensor& sum) {
  if (!sum.defined()) return ctx.tensor.reduce(partial);
  ctx.tensor.reduce(partial, sum);
  return sum;
}

}  // namespace

Norm make_norm(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const TensorPart& part) {
  const auto declare = [&](const char* name, Init init) {
    return store.declare(copied({.name = prefix + name, .shape = {spec.hidden}, .init = init, .decay = false},
                                part, part.sequence_parallel));
  };
  const ParamRef weight = declare("weight", Init::kOnes);
  ParamRef bias;
  if (spec.arch == Architecture::kGpt2) bias = declare("bias", Init::kZeros);
  return Norm(weight, bias, spec.norm_eps);
}

Block::Block(const ModelSpec& spec, ParamStore& store, const std::string& prefix, const Tensor& cos_sin,
             const TensorPart& part)
    : norm1_(make_norm(spec, store, prefix + "norm1.", part)),
      attention_(spec, store, prefix + "attn.", cos_sin, part),
      norm2_(make_norm(spec, store, prefix + "norm2.", part)),
      feed_forward_(spec, store, prefix + "mlp.", part) {}

// Everything before the feed-forward, whose input's own rows it leaves in saved.y2.
void Block::forward_to_feed_forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_all,
                                    Saved& saved) const {
  const auto input = [&] {
    return ctx.tensor.allocate(ctx.saved, x.dtype(), shape.tokens(), x.dim(1), keep_all);
  };
  saved.x = x;
  saved.y1 = input();
  norm1_.forward(ctx, x, saved.y1.own, saved.norm1, ctx.saved);
  const Tensor middle = ctx.saved.allocate(x.dtype(), x.shape());
  saved.y2 = input();
  const ArenaScope scope(ctx.work);
  const Tensor y1 = ctx.tensor.gather(saved.y1, ctx.work);
  const Tensor attended = ctx.tensor.reduce(attention_.forward(ctx, shape, y1, keep_all, saved.attention));
  norm2_.forward_add(ctx, x, attended, middle, saved.y2.own, saved.norm2, ctx.saved);
}

void Block::forward(Context& ctx, BatchShape shape, const Tensor& x, bool keep_all, const Tensor& out,
                    Saved& saved) const {
  forward_to_feed_forward(ctx, shape, x, keep_all, saved);
  const ArenaScope scope(ctx.work);
  const Tensor y2 = ctx.tensor.gather(saved.y2, ctx.work);
  const Tensor fed = ctx.tensor.reduce(feed_forward_.forward(ctx, y2, saved.feed_forward));
  ops::add(ctx.stream, saved.norm2.x, fed, out);
}

void Block::forward_again(Context& ctx, BatchShape shape, const Tensor& x, Saved& saved) const {
  forward_to_feed_forward(ctx, shape, x, true, saved);
  feed_forward_.forward_core(ctx, ctx.tensor.gather(saved.y2, ctx.work), saved.feed_forward);
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

void Block::backward(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout,
                     const Tensor& dx) const {
  Context at_once = ctx.keeping_in(ctx.work);
  const TensorGroup& tensor = ctx.tensor;
  const ArenaScope scope(ctx.work);
  const SharedRows d_middle = tensor.allocate(ctx.work, dout.dtype(), shape.tokens(), dout.dim(1), true);
  {
    const ArenaScope half(ctx.work);
    FeedForward::Gradients grads;
    const SharedRows d_out = {.own = dout, .whole = tensor.gather(dout, ctx.work)};
    const TensorGroup::Pending y2 = tensor.begin_gather(saved.y2, ctx.work);
    const TensorGroup::Pending d_norm2 = tensor.begin_reduce(
        feed_forward_.backward_input(at_once, saved.feed_forward, d_out.whole, ctx.work, grads));
    feed_forward_.backward_weight(at_once, saved.feed_forward, tensor.wait(y2), d_out, grads);
    const Tensor dy = tensor.wait(d_norm2);
    norm2_.backward_input(at_once, saved.norm2, dy, dout, d_middle.own);
    norm2_.backward_weight(at_once, saved.norm2, dy);
  }
  SelfAttention::Gradients grads;
  tensor.gather(d_middle, ctx.work);
  const TensorGroup::Pending y1 = tensor.begin_gather(saved.y1, ctx.work);
  const TensorGroup::Pending d_norm1 = tensor.begin_reduce(
      attention_.backward_input(at_once, shape, saved.attention, d_middle.whole, ctx.work, grads));
  attention_.backward_weight(at_once, shape, saved.attention, tensor.wait(y1), d_middle, grads);
  const Tensor dy = tensor.wait(d_norm1);
  norm1_.backward_input(at_once, saved.norm1, dy, d_middle.own, dx);
  norm1_.backward_weight(at_once, saved.norm1, dy);
}

void Block::backward_input(Context& ctx, BatchShape shape, const Saved& saved, const Tensor& dout,
                           const Tensor& dx, Gradients& grads) const {
  const TensorGroup& tensor = ctx.tensor;
  const Arena::Mark mark = ctx.work.mark();
  grads.d_out = {.own = dout, .whole = tensor.gather(dout, ctx.kept)};
  grads.d_middle = tensor.allocate(ctx.kept, dout.dtype(), shape.tokens(), dout.dim(1), true);
  Tensor sum = place_of_sum(ctx, dout.dtype(), dout.shape());
  grads.d_norm2 = reduce_to(ctx,
                            feed_forward_.backward_input(ctx, saved.feed_forward, grads.d_out.whole,
                                                         partial_arena(ctx), grads.feed_forward),
                            sum);
  release_temporaries(ctx, mark);
  norm2_.backward_input(ctx, saved.norm2, grads.d_norm2, dout, grads.d_middle.own);
  tensor.gather(grads.d_middle, ctx.kept);
  sum = place_of_sum(ctx, dout.dtype(), dout.shape());
  grads.d_norm1 = reduce_to(ctx,
                            attention_.backward_input(ctx, shape, saved.attention, grads.d_middle.whole,
                                                      partial_arena(ctx), grads.attention),
                            sum);
  release_temporaries(ctx, mark);
  norm1_.backward_input(ctx, saved.norm1, grads.d_norm1, grads.d_middle.own, dx);
}

void Block::backward_weight(Context& ctx, BatchShape shape, const Saved& saved, const Gradients& grads) const {
  const TensorGroup& tensor = ctx.tensor;
  const ArenaScope scope(ctx.work);
  const TensorGroup::Pending y2 = tensor.begin_gather(saved.y2, ctx.work);
  const TensorGroup::Pending y1 = tensor.begin_gather(saved.y1, ctx.work);
  norm2_.backward_weight(ctx, saved.norm2, grads.d_norm2);
  feed_forward_.backward_weight(ctx, saved.feed_forward, tensor.wait(y2), grads.d_out, grads.feed_forward);
  attention_.backward_weight(ctx, shape, saved.attention, tensor.wait(y1), grads.d_middle, grads.attention);
  norm1_.backward_weight(ctx, saved.norm1, grads.d_norm1);
}

}  // namespace meshtrain
