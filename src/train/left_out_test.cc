#include "train/left_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace meshtrain {
namespace {

std::vector<std::int64_t> listed(const std::vector<SampleRange>& ranges) {
  std::vector<std::int64_t> samples;
  for (const SampleRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) samples.push_back(range.first + i);
  }
  return samples;
}

TEST(LeftOut, WithoutAnyAPositionIsItsSample) {
  const LeftOut none;
  EXPECT_EQ(none.samples_at(12, 4), (std::vector<SampleRange>{{12, 4}}));
  EXPECT_TRUE(none.samples_at(12, 0).empty());
}

TEST(LeftOut, WhatIsLeftOutIsPassedOver) {
  LeftOut left_out;
  EXPECT_EQ(left_out.leave_out(8, 4), (std::vector<SampleRange>{{8, 4}}));
  EXPECT_EQ(left_out.samples_at(4, 4), (std::vector<SampleRange>{{4, 4}}));
  EXPECT_EQ(left_out.samples_at(8, 4), (std::vector<SampleRange>{{12, 4}}));
  // The same position again: what took the place of the first is left out too.
  EXPECT_EQ(left_out.leave_out(8, 4), (std::vector<SampleRange>{{12, 4}}));
  EXPECT_EQ(left_out.samples_at(8, 4), (std::vector<SampleRange>{{16, 4}}));
  // An earlier one, and a window of another size that a gap runs through.
  EXPECT_EQ(left_out.leave_out(0, 4), (std::vector<SampleRange>{{0, 4}}));
  EXPECT_EQ(left_out.samples_at(2, 6), (std::vector<SampleRange>{{6, 2}, {16, 4}}));
}

// Against a list of the samples from which the left-out ones are erased.
TEST(LeftOut, EqualsAListFromWhichTheyAreErased) {
  std::vector<std::int64_t> expected(400);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::int64_t>(i);
  LeftOut left_out;
  const std::vector<SampleRange> windows = {{40, 8}, {40, 8}, {16, 8}, {120, 5}, {15, 40}, {0, 1}, {0, 7}};
  for (const SampleRange& window : windows) {
    const auto begin = expected.begin() + window.first;
    EXPECT_EQ(listed(left_out.leave_out(window.first, window.count)),
              std::vector<std::int64_t>(begin, begin + window.count));
    expected.erase(begin, begin + window.count);
    ASSERT_TRUE(LeftOut::possible(left_out.ranges()));
    for (std::int64_t position = 0; position < 200; ++position) {
      for (const std::int64_t count : {1, 3, 64}) {
        const auto at = expected.begin() + position;
        ASSERT_EQ(listed(left_out.samples_at(position, count)), std::vector<std::int64_t>(at, at + count));
      }
    }
  }
}

TEST(LeftOut, KnowsWhichRangesAreImpossible) {
  EXPECT_TRUE(LeftOut::possible({}));
  EXPECT_TRUE(LeftOut::possible({{0, 4}, {4, 4}, {20, 1}}));
  EXPECT_FALSE(LeftOut::possible({{4, 4}, {0, 4}}));
  EXPECT_FALSE(LeftOut::possible({{0, 5}, {4, 4}}));
  EXPECT_FALSE(LeftOut::possible({{0, 0}}));
  EXPECT_FALSE(LeftOut::possible({{-1, 4}}));
  EXPECT_FALSE(LeftOut::possible({{4, std::numeric_limits<std::int64_t>::max()}}));
}

}  // namespace
}  // namespace meshtrain
