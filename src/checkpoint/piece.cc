#include "checkpoint/piece.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace meshtrain {
namespace {

// Rows of a slice: what lies together in the slice and in the whole.
struct Rows {
  Rows(const PieceRange& range, const Shape& whole) {
    std::int64_t inner = 1;
    for (int d = range.dim + 1; d < whole.rank(); ++d) inner *= whole[d];
    row = (range.end - range.begin) * inner;
    begin = range.begin * inner;
    whole_row = whole[range.dim] * inner;
  }
  // The rows that both a piece and the whole's elements [first, end) reach; at least one of either.
  std::int64_t first(const PieceRange& range, std::int64_t first) const {
    return std::max(first / whole_row, range.first / row);
  }
  std::int64_t last(const PieceRange& range, std::int64_t end) const {
    return std::min((end - 1) / whole_row, (range.first + range.count - 1) / row);
  }

  std::int64_t row = 0;        // elements of one in the slice
  std::int64_t begin = 0;      // where the slice begins in a row of the whole
  std::int64_t whole_row = 0;  // elements of one in the whole
};

// Calls visit(begin, end, to_whole) for the elements of the slice, row by row, that both the piece and elements
// [first, first + count) of the whole have; element i of the slice is element i + to_whole of the whole. Ends
// early when visit returns false.
template <class Visit>
void for_each_overlap(const PieceRange& range, const Shape& whole, std::int64_t first, std::int64_t count,
                      const Visit& visit) {
  const Rows rows(range, whole);
  if (count <= 0 || rows.row <= 0 || range.count <= 0) return;
  for (std::int64_t r = rows.first(range, first); r <= rows.last(range, first + count); ++r) {
    const std::int64_t to_whole = r * rows.whole_row + rows.begin - r * rows.row;
    const std::int64_t begin = std::max({r * rows.row, range.first, first - to_whole});
    const std::int64_t end =
        std::min({(r + 1) * rows.row, range.first + range.count, first + count - to_whole});
    if (begin < end && !visit(begin, end, to_whole)) return;
  }
}

}  // namespace

PieceRange whole_range(const Shape& whole) {
  return {.dim = 0, .begin = 0, .end = whole[0], .first = 0, .count = whole.numel()};
}

PieceRange range_of(const Shape& held, const ParamSlice& slice, std::int64_t first, std::int64_t count) {
  if (slice.whole.rank() == 0) {
    return {.dim = 0, .begin = 0, .end = held[0], .first = first, .count = count};
  }
  const std::int64_t elements = held_elements(held, slice);
  check(elements == held.numel() || slice.dim == 0, "padding of a parameter amid what is held of it");
  const std::int64_t begin = std::min(slice.first, slice.whole[slice.dim]);
  return {.dim = slice.dim,
          .begin = begin,
          .end = std::min(slice.first + held[slice.dim], slice.whole[slice.dim]),
          .first = first,
          .count = std::clamp<std::int64_t>(elements - first, 0, count)};
}

Shape slice_shape(const PieceRange& range, const Shape& whole) {
  Shape shape = whole;
  shape[range.dim] = range.end - range.begin;
  return shape;
}

bool is_whole_slice(const PieceRange& range, const Shape& whole) {
  return range.first == 0 && range.count == slice_shape(range, whole).numel();
}

bool is_whole_tensor(const PieceRange& range, const Shape& whole) {
  return range.begin == 0 && range.end == whole[range.dim] && is_whole_slice(range, whole);
}

bool is_valid(const PieceRange& range, const Shape& whole) {
  if (range.dim < 0 || range.dim >= whole.rank()) return false;
  if (range.begin < 0 || range.begin > range.end || range.end > whole[range.dim]) return false;
  const std::int64_t elements = slice_shape(range, whole).numel();
  return range.first >= 0 && range.first <= elements && range.count >= 0 &&
         range.count <= elements - range.first;
}

bool overlaps(const PieceRange& range, const Shape& whole, std::int64_t first, std::int64_t count) {
  bool found = false;
  for_each_overlap(range, whole, first, count, [&](std::int64_t, std::int64_t, std::int64_t) {
    found = true;
    return false;
  });
  return found;
}

std::int64_t copy_overlap(const PieceRange& range, const Shape& whole, std::span<const std::byte> piece,
                          std::int64_t element_bytes, std::int64_t first, std::span<std::byte> to) {
  const std::int64_t count = static_cast<std::int64_t>(to.size()) / element_bytes;
  std::int64_t copied = 0;
  const auto copy = [&](std::int64_t begin, std::int64_t end, std::int64_t to_whole) {
    std::memcpy(to.data() + (begin + to_whole - first) * element_bytes,
                piece.data() + (begin - range.first) * element_bytes,
                static_cast<std::size_t>((end - begin) * element_bytes));
    copied += end - begin;
    return true;
  };
  for_each_overlap(range, whole, first, count, copy);
  return copied;
}

}  // namespace meshtrain
