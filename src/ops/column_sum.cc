#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"
#include "ops/matmul.h"

namespace meshtrain::ops {

void column_sum(Stream& stream, const Tensor& x, const Tensor& out, bool accumulate) {
  check(x.rank() >= 1 && is_float(x.dtype()), "column_sum: x must be rows of fp32, bf16 or fp16");
  check_gradient_vector(out, x.dtype(), x.shape().back(), "column_sum: out must be [N] in fp32 or x's dtype");
  run(stream, {.bytes = x.bytes() + out.bytes() * (accumulate ? 2 : 1)},
      [&] { cpu::column_sum(stream, x, out, accumulate); });
}

}  // namespace meshtrain::ops
