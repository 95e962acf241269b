#include "model/linear.h"

#include "ops/matmul.h"

namespace meshtrain {

void Linear::forward(Context& ctx, const Tensor& x, const Tensor& y) const {
  ops::matmul(ctx.stream, x, weight_.weight(), y, {.transpose_b = true},
              bias_.defined() ? bias_.weight() : Tensor());
}

void Linear::backward_input(Context& ctx, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ctx.stream, dy, weight_.weight(), dx, {});
}

void Linear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const {
  ops::matmul(ctx.stream, dy, x, weight_.gradient(), {.transpose_a = true, .accumulate = ctx.accumulate});
  if (bias_.defined()) ops::column_sum(ctx.stream, dy, bias_.gradient(), ctx.accumulate);
}

}  // namespace meshtrain
