#include "ops/rope.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {

void rope(Stream& stream, const Tensor& x, const Tensor& cos_sin, RopeDirection direction) {
  check(x.rank() == 4 && is_float(x.dtype()) && x.dim(3) % 2 == 0,
        "rope: x must be [B, T, heads, D] of fp32, bf16 or fp16, D even");
  check(cos_sin.rank() == 2 && cos_sin.contiguous(), "rope: cos_sin must be contiguous [T, D]");
  check_matrix(cos_sin, DType::kF32, x.dim(1), x.dim(3), "rope: cos_sin must be fp32 [T, D]");
  run(stream, {.bytes = 2 * x.bytes() + cos_sin.bytes()}, [&] { cpu::rope(stream, x, cos_sin, direction); });
}

}  // namespace meshtrain::ops
