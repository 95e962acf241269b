#include "ops/norm.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

struct Extent {
  DType dtype;
  std::int64_t rows;
  std::int64_t width;
};

Extent check_input(const Tensor& x, const Tensor& stats, NormKind kind) {
  check(x.rank() >= 1 && is_float(x.dtype()) && x.shape().back() > 0,
        "norm: x must be non-empty rows of fp32, bf16 or fp16");
  const Extent extent{x.dtype(), rows_of(x), x.shape().back()};
  check_matrix(stats, DType::kF32, extent.rows, stats_width(kind),
               "norm: stats must be fp32 [rows, stats_width]");
  return extent;
}

void check_like(const Tensor& t, const Extent& x, std::string_view what) {
  check_matrix(t, x.dtype, x.rows, x.width, what);
}

}  // namespace

void norm_forward(Stream& stream, const NormForward& args) {
  const Extent x = check_input(args.x, args.stats, args.kind);
  check_like(args.y, x, "norm: y must be like x");
  check_vector(args.gamma, x.dtype, x.width, "norm: gamma must be [H] of x's dtype");
  if (args.kind == NormKind::kLayerNorm) {
    check_vector(args.beta, x.dtype, x.width, "norm: beta must be [H] of x's dtype");
  }
  check(args.delta.defined() == args.sum.defined(), "norm: delta and sum go together");
  if (args.delta.defined()) {
    check_like(args.delta, x, "norm: delta must be like x");
    check_like(args.sum, x, "norm: sum must be like x");
  }
  const std::int64_t bytes = args.x.bytes() + bytes_of(args.delta) + bytes_of(args.sum) + args.gamma.bytes() +
                             bytes_of(args.beta) + args.y.bytes() + args.stats.bytes();
  run(stream, {.bytes = bytes}, [&] { cpu::norm_forward(stream, args); });
}

void norm_backward_input(Stream& stream, const NormBackwardInput& args) {
  const Extent x = check_input(args.x, args.stats, args.kind);
  check_like(args.dy, x, "norm: dy must be like x");
  check_like(args.dx, x, "norm: dx must be like x");
  check_vector(args.gamma, x.dtype, x.width, "norm: gamma must be [H] of x's dtype");
  if (args.residual_gradient.defined()) {
    check_like(args.residual_gradient, x, "norm: residual_gradient must be like x");
  }
  const std::int64_t bytes = args.x.bytes() + args.gamma.bytes() + args.stats.bytes() + args.dy.bytes() +
                             bytes_of(args.residual_gradient) + args.dx.bytes();
  run(stream, {.bytes = bytes}, [&] { cpu::norm_backward_input(stream, args); });
}

void norm_backward_weight(Stream& stream, const NormBackwardWeight& args) {
  const Extent x = check_input(args.x, args.stats, args.kind);
  check_like(args.dy, x, "norm: dy must be like x");
  check_gradient_vector(args.dgamma, x.dtype, x.width, "norm: dgamma must be [H] in fp32 or x's dtype");
  std::int64_t written = args.dgamma.bytes();
  if (args.kind == NormKind::kLayerNorm) {
    check_gradient_vector(args.dbeta, x.dtype, x.width, "norm: dbeta must be [H] in fp32 or x's dtype");
    written += args.dbeta.bytes();
  }
  const std::int64_t bytes =
      args.x.bytes() + args.stats.bytes() + args.dy.bytes() + written * (args.accumulate ? 2 : 1);
  run(stream, {.bytes = bytes}, [&] { cpu::norm_backward_weight(stream, args); });
}

}  // namespace meshtrain::ops
