#include "pipeline/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <tuple>

namespace meshtrain {
namespace {

using Split = std::vector<std::int64_t>;

std::vector<double> piece_costs(const Split& split, const LayerCosts& costs) {
  std::vector<double> pieces;
  for (const std::int64_t blocks : split) pieces.push_back(static_cast<double>(blocks) * costs.block);
  pieces.front() += costs.embedding;
  pieces.back() += costs.head;
  return pieces;
}

double bottleneck(const Split& split, int stages, const LayerCosts& costs) {
  std::vector<double> loads(stages, 0.0);
  const std::vector<double> pieces = piece_costs(split, costs);
  for (std::size_t i = 0; i < pieces.size(); ++i) loads[i % stages] += pieces[i];
  return *std::max_element(loads.begin(), loads.end());
}

// The best of all splits by the three rules of the header.
struct Search {
  std::int64_t blocks;
  int stages;
  int chunks;
  LayerCosts costs;
  Split best;
  std::tuple<double, double, Split> best_key;

  void run(Split& split, std::int64_t left) {
    const std::size_t count = static_cast<std::size_t>(stages * chunks);
    if (split.size() == count) {
      if (left == 0) consider(split);
      return;
    }
    const bool may_be_empty = split.empty() || split.size() + 1 == count;
    for (std::int64_t n = may_be_empty ? 0 : 1; n <= left; ++n) {
      split.push_back(n);
      run(split, left - n);
      split.pop_back();
    }
  }
  void consider(const Split& split) {
    const std::vector<double> pieces = piece_costs(split, costs);
    Split fewer = split;
    for (std::int64_t& n : fewer) n = -n;
    const std::tuple key(bottleneck(split, stages, costs),
                         std::inner_product(pieces.begin(), pieces.end(), pieces.begin(), 0.0), fewer);
    if (best.empty() || key < best_key) {
      best = split;
      best_key = key;
    }
  }
};

TEST(Split, EqualsTheBestOfAll) {
  std::mt19937 random(1);
  int seen = 0;
  for (int stages = 1; stages <= 4; ++stages) {
    for (int chunks = 1; stages * chunks <= 6; ++chunks) {
      for (std::int64_t blocks = std::max(0, stages * chunks - 2); blocks <= 11; ++blocks) {
        for (int i = 0; i < 8; ++i) {
          // Whole numbers: costs that should be equal are.
          const LayerCosts costs = {.embedding = static_cast<double>(random() % 12),
                                    .block = static_cast<double>(1 + random() % 4),
                                    .head = static_cast<double>(random() % 12)};
          Search search{blocks, stages, chunks, costs, {}, {}};
          Split split;
          search.run(split, blocks);
          EXPECT_EQ(balanced_split(blocks, stages, chunks, costs), search.best)
              << blocks << " blocks, " << stages << " stages, " << chunks << " chunks, costs "
              << costs.embedding << " " << costs.block << " " << costs.head;
          ++seen;
        }
      }
    }
  }
  EXPECT_GT(seen, 500);
}

TEST(Split, KeepsUnevenCounts) {
  EXPECT_EQ(balanced_split(61, 4, 1, {.block = 1.0}), (Split{16, 15, 15, 15}));
  // 15.1, 16, 16 and 14 + 2: no stage above 16.
  EXPECT_EQ(balanced_split(61, 4, 1, {.embedding = 0.1, .block = 1.0, .head = 2.0}), (Split{15, 16, 16, 14}));
  EXPECT_EQ(balanced_split(12, 1, 1, {.embedding = 3.0, .block = 1.0, .head = 3.0}), (Split{12}));
  EXPECT_EQ(balanced_split(12, 2, 1, {.block = 1.0, .head = 6.0}), (Split{9, 3}));
  EXPECT_EQ(balanced_split(2, 4, 1, {.embedding = 1.0, .block = 1.0, .head = 1.0}), (Split{0, 1, 1, 0}));
  EXPECT_EQ(balanced_split(0, 2, 1, {.block = 1.0}), (Split{0, 0}));
}

TEST(Split, BalancesStagesOverTheirChunks) {
  // The last piece has the head: what it lacks goes to the other chunk of its stage before another stage has
  // more.
  const LayerCosts costs = {.block = 1.0, .head = 3.0};
  const Split split = balanced_split(13, 2, 2, costs);
  EXPECT_EQ(split, (Split{4, 4, 4, 1}));
  EXPECT_EQ(bottleneck(split, 2, costs), 8.0);
}

TEST(Split, OfALargeModelIsExactToABlock) {
  const LayerCosts costs = {.embedding = 1e3, .block = 3.7e15, .head = 5.1e15};
  const Split split = balanced_split(126, 16, 8, costs);
  EXPECT_EQ(split.size(), 128u);
  EXPECT_EQ(std::accumulate(split.begin(), split.end(), std::int64_t{0}), 126);
  for (std::size_t i = 1; i + 1 < split.size(); ++i) EXPECT_EQ(split[i], 1);
  // Blocks of one piece a stage: 15 stages with 8, the last with 6 and the head.
  const Split single = balanced_split(126, 16, 1, costs);
  EXPECT_EQ(bottleneck(single, 16, costs), 8 * costs.block + costs.embedding);
}

TEST(Split, RefusesTooFewBlocks) {
  EXPECT_THROW(balanced_split(1, 4, 1, {.block = 1.0}), std::logic_error);
  EXPECT_THROW(balanced_split(4, 2, 1, {.block = 0.0}), std::logic_error);
}

TEST(Split, IsPrinted) {
  EXPECT_EQ(to_string(Split{9, 3}), "9, 3");
}

}  // namespace
}  // namespace meshtrain
