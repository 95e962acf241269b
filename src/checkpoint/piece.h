// What of a tensor a file of a checkpoint holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/tensor.h"
#include "params/slice.h"

namespace meshtrain {

// Elements [first, first + count), in row-major order, of a slice of a tensor: places [begin, end) of dimension
// `dim`, and the other dimensions whole. Parts of a slice are what data-parallel ranks share out.
struct PieceRange {
  int dim = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const PieceRange&, const PieceRange&) = default;
};

// All of a tensor of this shape.
PieceRange whole_range(const Shape& whole);
// Elements [first, first + count) of what a rank holds of a parameter in `held`, without padding, which is only
// allowed at the end of the first dimension.
PieceRange range_of(const Shape& held, const ParamSlice& slice, std::int64_t first, std::int64_t count);

// Dimensions of the slice.
Shape slice_shape(const PieceRange& range, const Shape& whole);
// Whether it is all of its slice, and whether the slice is all of the tensor.
bool is_whole_slice(const PieceRange& range, const Shape& whole);
bool is_whole_tensor(const PieceRange& range, const Shape& whole);
// Whether such a piece exists in a tensor of this shape.
bool is_valid(const PieceRange& range, const Shape& whole);

// Whether the piece holds any of elements [first, first + count) of the whole tensor.
bool overlaps(const PieceRange& range, const Shape& whole, std::int64_t first, std::int64_t count);

// Copies those of elements [first, first + to.size() / element_bytes) of the whole tensor that the piece holds
// to their places in `to`. Returns how many there were.
std::int64_t copy_overlap(const PieceRange& range, const Shape& whole, std::span<const std::byte> piece,
                          std::int64_t element_bytes, std::int64_t first, std::span<std::byte> to);

}  // namespace meshtrain
