#include "device/tensor.h"

#include <fmt/ranges.h>

#include <span>

namespace meshtrain {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  check(dims.size() <= kMaxRank, "a tensor has at most four dimensions");
  for (const std::int64_t dim : dims) {
    check(dim >= 0, "negative dimension");
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
}

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  for (int i = 0; i < rank_; ++i) {
    check(!__builtin_mul_overflow(count, (*this)[i], &count), "element count overflows 64 bits");
  }
  return count;
}

std::string Shape::to_string() const {
  return fmt::format("[{}]", fmt::join(std::span(dims_.data(), static_cast<std::size_t>(rank_)), ", "));
}

Tensor::Tensor(void* data, DType dtype, const Shape& shape) : data_(data), dtype_(dtype), shape_(shape) {
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides_[static_cast<std::size_t>(i)] = stride;
    stride *= shape[i];
  }
}

Tensor::Tensor(void* data, DType dtype, const Shape& shape,
               const std::array<std::int64_t, Shape::kMaxRank>& strides)
    : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {
  check(shape.rank() == 0 || stride(shape.rank() - 1) == 1, "innermost dimension must be contiguous");
}

bool Tensor::contiguous() const {
  std::int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return false;
    expected *= dim(i);
  }
  return true;
}

Tensor tensor_in(const Buffer& buffer, std::int64_t byte_offset, DType dtype, const Shape& shape) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(buffer.data()) + static_cast<std::uintptr_t>(byte_offset);
  return Tensor(reinterpret_cast<void*>(address), dtype, shape);
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t length) const {
  check(dim >= 0 && dim < rank(), "slice of a dimension that is not there");
  check(begin >= 0 && length >= 0 && begin + length <= shape_[dim], "slice out of range");
  Tensor result = *this;
  result.shape_[dim] = length;
  const auto offset = static_cast<std::uintptr_t>(begin * stride(dim) * size_of(dtype_));
  result.data_ = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data_) + offset);
  return result;
}

Tensor Tensor::view(const Shape& shape) const {
  check(contiguous() && shape.numel() == numel(), "view needs a contiguous tensor of as many elements");
  return Tensor(data_, dtype_, shape);
}

Tensor Tensor::split(int dim, std::int64_t outer, std::int64_t inner) const {
  check(dim >= 0 && dim < rank() && rank() < Shape::kMaxRank, "split of a dimension that is not there");
  check(outer * inner == shape_[dim], "split sizes do not multiply to the dimension");
  std::array<std::int64_t, Shape::kMaxRank> strides{};
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  int out = 0;
  const auto put = [&](std::int64_t size, std::int64_t step) {
    dims[static_cast<std::size_t>(out)] = size;
    strides[static_cast<std::size_t>(out++)] = step;
  };
  for (int i = 0; i < rank(); ++i) {
    if (i == dim) {
      put(outer, inner * stride(i));
      put(inner, stride(i));
    } else {
      put(this->dim(i), stride(i));
    }
  }
  Shape shape;
  switch (out) {
    case 2:
      shape = {dims[0], dims[1]};
      break;
    case 3:
      shape = {dims[0], dims[1], dims[2]};
      break;
    default:
      shape = {dims[0], dims[1], dims[2], dims[3]};
      break;
  }
  return Tensor(data_, dtype_, shape, strides);
}

}  // namespace meshtrain
