#include "model/linear.h"

#include "ops/matmul.h"

namespace meshtrain {
namespace {

void multiply(Context& ctx, const Tensor& x, const ParamRef& weight, const Tensor& bias, const Tensor& y) {
  ops::matmul(ctx.stream, x, weight.weight(), y, {.transpose_b = true}, bias);
}

void multiply_back(Context& ctx, const Tensor& dy, const ParamRef& weight, const Tensor& dx) {
  ops::matmul(ctx.stream, dy, weight.weight(), dx, {});
}

void add_weight_gradient(Context& ctx, const Tensor& x, const Tensor& dy, const ParamRef& weight) {
  ops::matmul(ctx.stream, dy, x, weight.gradient(), {.transpose_a = true, .accumulate = ctx.accumulate});
}

void add_bias_gradient(Context& ctx, const Tensor& dy, const ParamRef& bias) {
  if (bias.defined()) ops::column_sum(ctx.stream, dy, bias.gradient(), ctx.accumulate);
}

}  // namespace

void Linear::forward(Context& ctx, const Tensor& x, const Tensor& y) const {
  multiply(ctx, x, weight_, bias_.defined() ? bias_.weight() : Tensor(), y);
}

void Linear::backward_input(Context& ctx, const Tensor& dy, const Tensor& dx) const {
  multiply_back(ctx, dy, weight_, dx);
}

void Linear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const {
  add_weight_gradient(ctx, x, dy, weight_);
  add_bias_gradient(ctx, dy, bias_);
}

void RowLinear::forward(Context& ctx, const Tensor& x, const Tensor& y) const {
  const bool adds_bias = bias_.defined() && ctx.tensor.part().rank == 0;
  multiply(ctx, x, weight_, adds_bias ? bias_.weight() : Tensor(), y);
}

void RowLinear::backward_input(Context& ctx, const Tensor& dy, const Tensor& dx) const {
  multiply_back(ctx, dy, weight_, dx);
}

void RowLinear::backward_weight(Context& ctx, const Tensor& x, const SharedRows& dy) const {
  add_weight_gradient(ctx, x, dy.whole, weight_);
  add_bias_gradient(ctx, dy.own, bias_);
}

}  // namespace meshtrain
