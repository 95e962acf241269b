#include "ops/matmul.h"

#include "ops/checks.h"
#include "ops/cpu/matmul.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

cpu::MatrixView view_of(const Tensor& t, bool transposed) {
  return {t.raw(), t.dtype(), t.stride(0), transposed};
}

void check_arguments(const Tensor& a, const Tensor& b, const Tensor& c, const MatmulOptions& options,
                     const Tensor& bias) {
  check(a.rank() == 2 && b.rank() == 2 && c.rank() == 2, "matmul: operands must be matrices");
  check(is_float(a.dtype()) && b.dtype() == a.dtype(),
        "matmul: a and b must be of one dtype of fp32, bf16, fp16");
  check(c.dtype() == a.dtype() || c.dtype() == DType::kF32, "matmul: c must be of the operands' dtype or fp32");
  check(a.dim(options.transpose_a ? 1 : 0) == c.dim(0), "matmul: the rows of a and c differ");
  check(b.dim(options.transpose_b ? 0 : 1) == c.dim(1), "matmul: the columns of b and c differ");
  check(a.dim(options.transpose_a ? 0 : 1) == b.dim(options.transpose_b ? 1 : 0),
        "matmul: the inner dimensions of a and b differ");
  if (!bias.defined()) return;
  check(!options.accumulate, "matmul: a bias cannot go with accumulate");
  check(bias.rank() == 1 && bias.dim(0) == c.dim(1), "matmul: bias must have c's columns");
  check(bias.dtype() == a.dtype() || bias.dtype() == DType::kF32, "matmul: bias must be of a's dtype or fp32");
}

}  // namespace

void matmul(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& c, const MatmulOptions& options,
            const Tensor& bias) {
  check_arguments(a, b, c, options, bias);
  cpu::MatmulCall call;
  call.rows = c.dim(0);
  call.cols = c.dim(1);
  call.depth = a.dim(options.transpose_a ? 0 : 1);
  call.a = view_of(a, options.transpose_a);
  call.b = view_of(b, options.transpose_b);
  call.c = {.data = c.raw(), .dtype = c.dtype(), .stride = c.stride(0), .accumulate = options.accumulate};
  if (bias.defined()) {
    call.c.bias = bias.raw();
    call.c.bias_dtype = bias.dtype();
  }
  const OpCost cost = {
      .flops = 2 * call.rows * call.cols * call.depth,
      .bytes = a.bytes() + b.bytes() + c.bytes() * (options.accumulate ? 2 : 1) + bytes_of(bias)};
  run(stream, cost,
      [&] { cpu::matmul(call, cpu::operand_for(a.dtype(), stream.bf16_products()), stream.pool()); });
}

}  // namespace meshtrain::ops
