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
// up to 4.25 MiB kept by each thread that computes. Products of 16-bit matrices computed in fp32 have the bits
// of the same product of fp32 matrices where a row of `a` is at most 4096 long and contiguous.
void matmul(const MatmulCall& call, Operand operand, ThreadPool& pool);

}  // namespace meshtrain::ops::cpu
