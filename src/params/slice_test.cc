#include "params/slice.h"

#include <gtest/gtest.h>

#include <vector>

namespace meshtrain {
namespace {

std::vector<SliceRun> runs(const Shape& shape, const ParamSlice& slice, std::int64_t first,
                           std::int64_t count) {
  std::vector<SliceRun> result;
  for_each_run(shape, slice, first, count, [&](const SliceRun& run) { result.push_back(run); });
  return result;
}

TEST(ForEachRun, WholeParametersAreOneRun) {
  EXPECT_EQ(runs({3, 4}, {}, 2, 7), (std::vector<SliceRun>{{2, 2, 7}}));
  EXPECT_TRUE(runs({3, 4}, {}, 2, 0).empty());
}

TEST(ForEachRun, RowsAreOneRunAndPaddingIsNone) {
  const ParamSlice slice = {.whole = {10, 4}, .dim = 0, .first = 8};
  EXPECT_EQ(runs({4, 4}, slice, 0, 16), (std::vector<SliceRun>{{0, 32, 8}}));
  EXPECT_EQ(runs({4, 4}, slice, 5, 6), (std::vector<SliceRun>{{5, 37, 3}}));
  EXPECT_TRUE(runs({4, 4}, slice, 8, 8).empty());
  EXPECT_TRUE(runs({4, 4}, {.whole = {10, 4}, .dim = 0, .first = 12}, 0, 16).empty());
}

TEST(ForEachRun, ColumnsAreARunARow) {
  const ParamSlice slice = {.whole = {3, 6}, .dim = 1, .first = 2};
  EXPECT_EQ(runs({3, 2}, slice, 0, 6), (std::vector<SliceRun>{{0, 2, 2}, {2, 8, 2}, {4, 14, 2}}));
  EXPECT_EQ(runs({3, 2}, slice, 1, 4), (std::vector<SliceRun>{{1, 3, 1}, {2, 8, 2}, {4, 14, 1}}));
}

TEST(HeldElements, LeaveOutPadding) {
  EXPECT_EQ(held_elements({3, 4}, {}), 12);
  EXPECT_EQ(held_elements({4, 4}, {.whole = {10, 4}, .dim = 0, .first = 4}), 16);
  EXPECT_EQ(held_elements({4, 4}, {.whole = {10, 4}, .dim = 0, .first = 8}), 8);
  EXPECT_EQ(held_elements({4, 4}, {.whole = {10, 4}, .dim = 0, .first = 12}), 0);
  EXPECT_EQ(held_elements({3, 2}, {.whole = {3, 5}, .dim = 1, .first = 4}), 3);
}

TEST(ForEachRun, VectorsAreCutAsRowsAre) {
  EXPECT_EQ(runs({2}, {.whole = {7}, .dim = 0, .first = 6}, 0, 2), (std::vector<SliceRun>{{0, 6, 1}}));
}

}  // namespace
}  // namespace meshtrain
