// Products of packed blocks by one thread, accumulated in fp32: what matmul and attention are made of.
//
// oneDNN computes them: its generated kernels reach the processor's peak when the left operand's
// rows and the result are contiguous and the right operand lies in panels (RightLayout), and lose
// much of it on strided or transposed operands. Blocks are therefore packed first (pack.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/stream.h"
#include "ops/cpu/pack.h"

namespace meshtrain::ops::cpu {

// Whether oneDNN has a fast kernel for bf16 blocks on this processor.
bool has_bf16_kernels();

// What matrices of this dtype are packed as: bf16 where `products` lets this processor multiply it
// (ops/processor.h says whether it should); otherwise fp32, to which every value converts exactly.
Operand operand_for(DType dtype, Bf16Products products);

// How right operands must be packed on this processor.
RightLayout right_layout(Operand operand);

// c[m, width] (+)= a[m, depth] · b[depth, width]. depth and width are multiples of kDepthUnit and
// kWidthUnit; a and c are row-major and contiguous, b as right_layout(operand) says; m > 0.
// The calling thread computes alone: call it from tasks of a thread pool. Kernels are generated at the
// first use of a size and kept, a bounded number of them, by each thread.
void multiply_block(Operand operand, std::int64_t m, std::int64_t width, std::int64_t depth, const void* a,
                    const void* b, float* c, bool accumulate);

// A block of memory that a thread keeps between calls; uninitialised. Grows as asked.
class Scratch {
 public:
  static constexpr std::int64_t kAlignment = 4096;

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  template <class T = void>
  T* get(std::int64_t bytes) {
    return static_cast<T*>(grow(bytes));
  }

 private:
  void* grow(std::int64_t bytes);

  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace meshtrain::ops::cpu
