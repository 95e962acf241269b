// The CPU back end of ops/attention.h: the same contracts, arguments already checked.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/attention.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/pack.h"

namespace meshtrain::ops::cpu {

void attention_forward(const AttentionForward& args, Operand operand, ThreadPool& pool);
void attention_backward(const AttentionBackward& args, Operand operand, ThreadPool& pool);

// The positions from `position` on of one head of a [B, T, heads, D] tensor, as a matrix [T, D].
inline MatrixView head_rows(const Tensor& t, std::int64_t batch, std::int64_t position, std::int64_t head) {
  const std::int64_t offset = batch * t.stride(0) + position * t.stride(1) + head * t.stride(2);
  return {static_cast<const std::byte*>(t.raw()) + offset * meshtrain::size_of(t.dtype()), t.dtype(),
          t.stride(1), false};
}

// The same, to be written.
inline Destination head_rows_out(const Tensor& t, std::int64_t batch, std::int64_t position,
                                 std::int64_t head) {
  const MatrixView view = head_rows(t, batch, position, head);
  return {.data = const_cast<void*>(view.data), .dtype = view.dtype, .stride = view.stride};
}

}  // namespace meshtrain::ops::cpu
