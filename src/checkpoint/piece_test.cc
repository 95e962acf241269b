#include "checkpoint/piece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace meshtrain {
namespace {

std::vector<std::int32_t> numbered(const Shape& whole) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(whole.numel()));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// Element by element: whether an index of the whole lies in the slice, counted in the slice's order.
std::vector<std::int32_t> piece_of(const PieceRange& range, const Shape& whole) {
  std::vector<std::int32_t> slice;
  for (const std::int32_t value : numbered(whole)) {
    std::int64_t rest = value;
    std::int64_t place = 0;
    for (int d = whole.rank() - 1; d >= 0; --d) {
      if (d == range.dim) place = rest % whole[d];
      rest /= whole[d];
    }
    if (place >= range.begin && place < range.end) slice.push_back(value);
  }
  return {slice.begin() + range.first, slice.begin() + range.first + range.count};
}

void check_piece(const PieceRange& range, const Shape& whole) {
  const std::vector<std::int32_t> piece = piece_of(range, whole);
  const std::int64_t elements = whole.numel();
  for (std::int64_t first = 0; first < elements; ++first) {
    for (std::int64_t count = 0; first + count <= elements; count += 1 + count / 3) {
      std::vector<std::int32_t> to(static_cast<std::size_t>(count), -1);
      std::vector<std::int32_t> expected = to;
      for (const std::int32_t value : piece) {
        if (value >= first && value < first + count) expected[static_cast<std::size_t>(value - first)] = value;
      }
      const std::int64_t copied = copy_overlap(range, whole, std::as_bytes(std::span(piece)), 4, first,
                                               std::as_writable_bytes(std::span(to)));
      ASSERT_EQ(to, expected) << first << ' ' << count;
      ASSERT_EQ(copied, count - std::count(expected.begin(), expected.end(), -1));
      ASSERT_EQ(overlaps(range, whole, first, count), copied > 0) << first << ' ' << count;
    }
  }
}

TEST(Piece, EveryRangeOfEverySliceGoesToItsPlace) {
  for (const Shape& whole : {Shape{7}, Shape{5, 4}, Shape{3, 4, 2}}) {
    for (int dim = 0; dim < whole.rank(); ++dim) {
      for (std::int64_t begin = 0; begin < whole[dim]; ++begin) {
        for (std::int64_t end = begin; end <= whole[dim]; ++end) {
          PieceRange range = {.dim = dim, .begin = begin, .end = end, .first = 0, .count = 0};
          const std::int64_t elements = slice_shape(range, whole).numel();
          for (range.first = 0; range.first <= elements; range.first += 1 + range.first / 2) {
            for (range.count = 0; range.first + range.count <= elements; range.count += 3) {
              ASSERT_TRUE(is_valid(range, whole));
              check_piece(range, whole);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(Piece, WhatARankHoldsOfAParameter) {
  // Columns 2 and 3 of four; rows 6 to 8 of a vocabulary of 8, of which one is padding; all.
  EXPECT_EQ(range_of({5, 2}, {.whole = {5, 4}, .dim = 1, .first = 2}, 1, 9),
            (PieceRange{.dim = 1, .begin = 2, .end = 4, .first = 1, .count = 9}));
  EXPECT_EQ(range_of({3, 4}, {.whole = {8, 4}, .dim = 0, .first = 6}, 4, 8),
            (PieceRange{.dim = 0, .begin = 6, .end = 8, .first = 4, .count = 4}));
  EXPECT_EQ(range_of({3, 4}, {.whole = {8, 4}, .dim = 0, .first = 9}, 0, 12).count, 0) << "nothing but padding";
  const PieceRange all = range_of({3, 4}, {}, 0, 12);
  EXPECT_TRUE(is_whole_tensor(all, {3, 4}));
  EXPECT_EQ(all, whole_range({3, 4}));
  EXPECT_FALSE(is_whole_tensor(range_of({3, 4}, {}, 0, 11), {3, 4}));
  EXPECT_TRUE(is_whole_slice(range_of({5, 2}, {.whole = {5, 4}, .dim = 1, .first = 2}, 0, 10), {5, 4}));
}

}  // namespace
}  // namespace meshtrain
