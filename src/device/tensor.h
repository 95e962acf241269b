// A non-owning view of device memory: dtype, up to four dimensions, strides in elements. The
// innermost dimension is always contiguous. On a simulated device `data` is never dereferenced.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/dtype.h"
#include "base/error.h"
#include "device/device.h"

namespace meshtrain {

class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims);

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const { return dims_[static_cast<std::size_t>(dim)]; }
  std::int64_t& operator[](int dim) { return dims_[static_cast<std::size_t>(dim)]; }
  std::int64_t back() const { return dims_[static_cast<std::size_t>(rank_ - 1)]; }
  std::int64_t numel() const;
  std::string to_string() const;  // "[2, 3]"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  // Contiguous.
  Tensor(void* data, DType dtype, const Shape& shape);
  Tensor(void* data, DType dtype, const Shape& shape, const std::array<std::int64_t, Shape::kMaxRank>& strides);

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t dim(int i) const { return shape_[i]; }
  std::int64_t stride(int i) const { return strides_[static_cast<std::size_t>(i)]; }
  std::int64_t numel() const { return shape_.numel(); }
  std::int64_t bytes() const { return numel() * size_of(dtype_); }
  bool contiguous() const;

  void* raw() const { return data_; }
  // T must match dtype; only code of a real device may dereference the result.
  template <class T>
  T* data() const {
    check(DTypeOf<T>::value == dtype_, "tensor read as another dtype");
    return static_cast<T*>(data_);
  }

  // Elements [begin, begin + length) of dimension `dim`; the other dimensions whole.
  Tensor slice(int dim, std::int64_t begin, std::int64_t length) const;
  // The same elements under another shape; must be contiguous.
  Tensor view(const Shape& shape) const;
  // Splits dimension `dim` into (outer, inner); works on strided tensors.
  Tensor split(int dim, std::int64_t outer, std::int64_t inner) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  std::array<std::int64_t, Shape::kMaxRank> strides_{};
};

// Contiguous, `byte_offset` bytes into a block.
Tensor tensor_in(const Buffer& buffer, std::int64_t byte_offset, DType dtype, const Shape& shape);

}  // namespace meshtrain
