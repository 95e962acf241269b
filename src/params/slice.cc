#include "params/slice.h"

#include <algorithm>

namespace meshtrain {

namespace {

// Places of the cut dimension that are not padding.
std::int64_t held_places(const Shape& shape, const ParamSlice& slice) {
  return std::clamp<std::int64_t>(slice.whole[slice.dim] - slice.first, 0, shape[slice.dim]);
}

}  // namespace

std::int64_t held_elements(const Shape& shape, const ParamSlice& slice) {
  if (slice.whole.rank() == 0) return shape.numel();
  return shape.numel() / shape[slice.dim] * held_places(shape, slice);
}

void for_each_run(const Shape& shape, const ParamSlice& slice, std::int64_t first, std::int64_t count,
                  const std::function<void(const SliceRun&)>& visit) {
  if (count <= 0) return;
  if (slice.whole.rank() == 0) {
    visit({.local = first, .global = first, .count = count});
    return;
  }
  // Rows of the slice: what lies together in the slice and in the whole.
  std::int64_t inner = 1;
  for (int d = slice.dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  const std::int64_t row = shape[slice.dim] * inner;
  const std::int64_t whole_row = slice.whole[slice.dim] * inner;
  const std::int64_t held = held_places(shape, slice);
  const std::int64_t end = first + count;
  for (std::int64_t r = first / row; r * row < end; ++r) {
    const std::int64_t begin_in_row = std::max(first - r * row, std::int64_t{0});
    const std::int64_t end_in_row = std::min(end - r * row, held * inner);
    if (begin_in_row >= end_in_row) continue;
    visit({.local = r * row + begin_in_row,
           .global = r * whole_row + slice.first * inner + begin_in_row,
           .count = end_in_row - begin_in_row});
  }
}

}  // namespace meshtrain
