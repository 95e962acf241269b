#include "model/norm.h"

namespace meshtrain {

void Norm::forward(Context& ctx, const Tensor& x, const Tensor& y, NormSaved& saved, Arena& arena) const {
  forward_add(ctx, x, {}, x, y, saved, arena);
}

void Norm::forward_add(Context& ctx, const Tensor& x, const Tensor& delta, const Tensor& sum, const Tensor& y,
                       NormSaved& saved, Arena& arena) const {
  const std::int64_t rows = x.numel() / x.shape().back();
  saved.x = sum;
  saved.stats = arena.allocate(DType::kF32, {rows, ops::stats_width(kind())});
  ops::norm_forward(ctx.stream, {.kind = kind(),
                                 .epsilon = epsilon_,
                                 .x = x,
                                 .delta = delta,
                                 .sum = delta.defined() ? sum : Tensor(),
                                 .gamma = weight_.weight(),
                                 .beta = bias_.defined() ? bias_.weight() : Tensor(),
                                 .y = y,
                                 .stats = saved.stats});
}

void Norm::backward_input(Context& ctx, const NormSaved& saved, const Tensor& dy,
                          const Tensor& residual_gradient, const Tensor& dx) const {
  ops::norm_backward_input(ctx.stream, {.kind = kind(),
                                        .x = saved.x,
                                        .gamma = weight_.weight(),
                                        .stats = saved.stats,
                                        .dy = dy,
                                        .residual_gradient = residual_gradient,
                                        .dx = dx});
}

void Norm::backward_weight(Context& ctx, const NormSaved& saved, const Tensor& dy) const {
  ops::norm_backward_weight(ctx.stream, {.kind = kind(),
                                         .x = saved.x,
                                         .stats = saved.stats,
                                         .dy = dy,
                                         .dgamma = weight_.gradient(),
                                         .dbeta = bias_.defined() ? bias_.gradient() : Tensor(),
                                         .accumulate = ctx.accumulate});
}

}  // namespace meshtrain
