#include "model/feed_forward.h"

#include <cmath>

#include "ops/activation.h"

namespace meshtrain {

FeedForward::FeedForward(const ModelSpec& spec, ParamStore& store, const std::string& prefix)
    : gated_(spec.arch == Architecture::kLlama) {
  const Shape up_shape = {spec.ffn_hidden, spec.hidden};
  const Shape down_shape = {spec.hidden, spec.ffn_hidden};
  const double residual = spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.layers));
  if (gated_) {
    up_ = Linear(
        store.declare_fused({{.name = prefix + "gate.weight", .shape = up_shape, .deviation = spec.init_std},
                             {.name = prefix + "up.weight", .shape = up_shape, .deviation = spec.init_std}}));
    down_ = Linear(store.declare({.name = prefix + "down.weight", .shape = down_shape, .deviation = residual}));
    return;
  }
  const ParamRef up_weight =
      store.declare({.name = prefix + "up.weight", .shape = up_shape, .deviation = spec.init_std});
  const ParamRef up_bias = store.declare(
      {.name = prefix + "up.bias", .shape = {spec.ffn_hidden}, .init = Init::kZeros, .decay = false});
  const ParamRef down_weight =
      store.declare({.name = prefix + "down.weight", .shape = down_shape, .deviation = residual});
  const ParamRef down_bias = store.declare(
      {.name = prefix + "down.bias", .shape = {spec.hidden}, .init = Init::kZeros, .decay = false});
  up_ = Linear(up_weight, up_bias);
  down_ = Linear(down_weight, down_bias);
}

void FeedForward::forward_core(Context& ctx, const Tensor& x, Saved& saved) const {
  saved.x = x;
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

Tensor FeedForward::backward_input(Context& ctx, const Saved& saved, const Tensor& dy, Gradients& grads) const {
  grads.dy = dy;
  grads.d_pre = ctx.work.allocate(dy.dtype(), saved.pre.shape());
  const Tensor dx = ctx.work.allocate(dy.dtype(), saved.x.shape());
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

void FeedForward::backward_weight(Context& ctx, const Saved& saved, const Gradients& grads) const {
  down_.backward_weight(ctx, saved.act, grads.dy);
  up_.backward_weight(ctx, saved.x, grads.d_pre);
}

}  // namespace meshtrain
