// What front ends ask of their arguments. A broken contract is our own mistake: std::logic_error.
#pragma once

#include <string_view>

#include "device/tensor.h"

namespace meshtrain::ops {

constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Gradients of weights are kept in fp32 or in the dtype of the pass.
inline bool is_gradient_of(const Tensor& gradient, DType pass) {
  return gradient.dtype() == DType::kF32 || gradient.dtype() == pass;
}

// Of all dimensions but the last.
inline std::int64_t rows_of(const Tensor& t) {
  std::int64_t rows = 1;
  for (int i = 0; i < t.rank() - 1; ++i) rows *= t.dim(i);
  return rows;
}

// Zero for an optional tensor that is not there.
inline std::int64_t bytes_of(const Tensor& t) {
  return t.defined() ? t.bytes() : 0;
}

inline void check_matrix(const Tensor& t, DType dtype, std::int64_t rows, std::int64_t width,
                         std::string_view what, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  check(t.rank() >= 1 && t.dtype() == dtype && rows_of(t) == rows && t.shape().back() == width, what, file,
        line);
}

inline void check_gradient_vector(const Tensor& t, DType pass, std::int64_t size, std::string_view what,
                                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  check(t.rank() == 1 && is_gradient_of(t, pass) && t.dim(0) == size, what, file, line);
}

inline void check_vector(const Tensor& t, DType dtype, std::int64_t size, std::string_view what,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  check(t.rank() == 1 && t.dtype() == dtype && t.dim(0) == size, what, file, line);
}

}  // namespace meshtrain::ops
