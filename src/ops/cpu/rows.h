// A tensor as rows: the last dimension is the row, the leading ones number the rows in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "device/tensor.h"

namespace meshtrain::ops::cpu {

class Rows {
 public:
  Rows() = default;
  // An optional tensor that is not there gives no rows; defined() tells.
  explicit Rows(const Tensor& t);

  bool defined() const { return data_ != nullptr; }
  std::int64_t count() const { return count_; }
  std::int64_t width() const { return width_; }

  // T must match the tensor's dtype.
  template <class T>
  T* row(std::int64_t r) const {
    return reinterpret_cast<T*>(data_ + offset(r));
  }

 private:
  std::int64_t offset(std::int64_t r) const {
    std::int64_t bytes = 0;
    for (int i = levels_ - 1; i > 0; --i) {
      bytes += r % dims_[static_cast<std::size_t>(i)] * strides_[static_cast<std::size_t>(i)];
      r /= dims_[static_cast<std::size_t>(i)];
    }
    return bytes + r * strides_[0];
  }

  std::byte* data_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t width_ = 0;
  // Leading dimensions, outermost first, those that lie one after the other merged; strides in bytes.
  int levels_ = 0;
  std::array<std::int64_t, Shape::kMaxRank> dims_{};
  std::array<std::int64_t, Shape::kMaxRank> strides_{};
};

// Calls body(T{}) with the C++ type of a floating-point dtype (fp32, bf16, fp16).
template <class Body>
void with_float_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BF16{});
    case DType::kF16:
      return body(F16{});
    default:
      check(false, "the operation takes fp32, bf16 or fp16");
  }
}

}  // namespace meshtrain::ops::cpu
