#include "ops/cross_entropy.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {

void cross_entropy(Stream& stream, const CrossEntropy& args) {
  check(args.logits.rank() == 2 && args.logits.dtype() == DType::kF32,
        "cross_entropy: logits must be fp32 [R, V]");
  const std::int64_t rows = args.logits.dim(0);
  const std::int64_t width = args.logits.dim(1);
  check(args.vocab > 0 && args.vocab <= width, "cross_entropy: vocab must be within the logits' columns");
  check_vector(args.targets, DType::kI32, rows, "cross_entropy: targets must be int32 [R]");
  check_vector(args.losses, DType::kF32, rows, "cross_entropy: losses must be fp32 [R]");
  if (args.dlogits.defined()) {
    check(is_float(args.dlogits.dtype()), "cross_entropy: dlogits must be fp32, bf16 or fp16");
    check_matrix(args.dlogits, args.dlogits.dtype(), rows, width, "cross_entropy: dlogits must be like logits");
  }
  const std::int64_t bytes =
      args.logits.bytes() + args.targets.bytes() + args.losses.bytes() + bytes_of(args.dlogits);
  run(stream, {.bytes = bytes}, [&] { cpu::cross_entropy(stream, args); });
}

}  // namespace meshtrain::ops
