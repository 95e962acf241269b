#include "model/feed_forward.h"

#include <cmath>

#include "model/cut.h"
#include "ops/activation.h"

namespace meshtrain {

FeedForward::FeedForward(const ModelSpec& spec, ParamStore& store, const std::string& prefix,
                         const TensorPart& part)
    : gated_(spec.arch == Architecture::kLlama) {
  check(spec.ffn_hidden % part.ranks == 0, "a feed-forward is cut into equal parts");
  const Shape up_shape = {spec.ffn_hidden, spec.hidden};
  const double residual = spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers));
  const auto rows = [&](const char* name) {
    return cut({.name = prefix + name, .shape = up_shape, .deviation = spec.init_std}, 0, part);
  };
  const ParamDecl down =
      cut({.name = prefix + "down.weight", .shape = {spec.hidden, spec.ffn_hidden}, .deviation = residual}, 1,
          part);
  if (gated_) {
    up_ = Linear(store.declare_fused({rows("gate.weight"), rows("up.weight")}));
    down_ = RowLinear(store.declare(down), {});
    return;
  }
  const ParamRef up_weight = store.declare(rows("up.weight"));
  const ParamRef up_bias = store.declare(cut(
      {.name = prefix + "up.bias", .shape = {spec.ffn_hidden}, .init = Init::kZeros, .decay = false}, 0, part));
  const ParamRef down_weight = store.declare(down);
  const ParamRef down_bias = store.declare(
      copied({.name = prefix + "down.bias", .shape = {spec.hidden}, .init = Init::kZeros, .decay = false}, part,
             part.sequence_parallel));
  up_ = Linear(up_weight, up_bias);
  down_ = RowLinear(down_weight, down_bias);
}

void FeedForward::forward_core(Context& ctx, const Tensor& x, Saved& saved) const {
  saved.pre = ctx.saved.allocate(x.dtype(), {x.dim(0), up_.out()});
  up_.forward(ctx, x, saved.pre);
  saved.act = ctx.saved.allocate(x.dtype(), {x.dim(0), down_.in()});
  if (gated_) {
    ops::swiglu_forward(ctx.stream, saved.pre, saved.act);
  } else {
    ops::gelu_forward(ctx.stream, saved.pre, saved.act);
  }
}

Tensor FeedForward::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  forward_core(ctx, x, saved);
  const Tensor y = ctx.work.allocate(x.dtype(), {x.dim(0), down_.out()});
  down_.forward(ctx, saved.act, y);
  return y;
}

Tensor FeedForward::backward_input(Context& ctx, const Saved& saved, const Tensor& dy, Arena& dx_arena,
                                   Gradients& grads) const {
  grads.d_pre = ctx.kept.allocate(dy.dtype(), saved.pre.shape());
  const Tensor dx = dx_arena.allocate(dy.dtype(), {dy.dim(0), up_.in()});
  if (gated_) {
    const ArenaScope scope(ctx.work);
    const Tensor d_act = ctx.work.allocate(dy.dtype(), saved.act.shape());
    down_.backward_input(ctx, dy, d_act);
    ops::swiglu_backward(ctx.stream, saved.pre, d_act, grads.d_pre);
  } else {
    down_.backward_input(ctx, dy, grads.d_pre);
    ops::gelu_backward(ctx.stream, saved.pre, grads.d_pre, grads.d_pre);
  }
  up_.backward_input(ctx, grads.d_pre, dx);
  return dx;
}

void FeedForward::backward_weight(Context& ctx, const Saved& saved, const Tensor& x, const SharedRows& dy,
                                  const Gradients& grads) const {
  down_.backward_weight(ctx, saved.act, dy);
  up_.backward_weight(ctx, x, grads.d_pre);
}

}  // namespace meshtrain
