// The CPU back end of ops/matmul.h.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/pack.h"

namespace meshtrain::ops::cpu {

// c[rows, cols] = a[rows, depth] · b[depth, cols], finished as the destination says.
struct MatmulCall {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;
  MatrixView a;
  MatrixView b;
  Destination c;
};

// Memory: up to 20 MiB of packed operands and sums, kept by the calling thread for its next product, and
// 256 KiB kept by each thread that computes.
// `operand` is operand_for(a.dtype), or kF32 to compute as processors without bf16 do.
void matmul(const MatmulCall& call, Operand operand, ThreadPool& pool);

}  // namespace meshtrain::ops::cpu
