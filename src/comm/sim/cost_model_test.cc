#include "comm/sim/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/ring_bytes.h"

namespace meshtrain {
namespace {

using enum CollectiveAlgorithm;
using enum CommOp;

constexpr Link kLink{3e-6, 20e9};
constexpr double kAlpha = kLink.latency_seconds;

double wire(double bytes) {
  return bytes / kLink.bytes_per_second;
}

double seconds(CommOp op, CollectiveAlgorithm algorithm, std::int64_t ranks, std::int64_t bytes) {
  return collective_cost(op, algorithm, ranks, bytes, kLink).seconds;
}

void expect_near(double actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-12 * expected);
}

// Published: the gradients of 1e9 parameters in bf16 on 8 ranks.
TEST(CostModel, ServerCarriesEightTimesWhatARingDoes) {
  const CollectiveCost ring = collective_cost(kAllReduce, kRing, 8, 2'000'000'000, kLink);
  EXPECT_EQ(ring.sent_bytes, 3'500'000'000);
  EXPECT_EQ(ring.link_bytes, 7'000'000'000);  // as much comes in
  const CollectiveCost server = collective_cost(kAllReduce, kServer, 8, 2'000'000'000, kLink);
  EXPECT_EQ(server.link_bytes, 28'000'000'000);  // 14 in, 14 out
  EXPECT_EQ(server.sent_bytes, 14'000'000'000);
  EXPECT_EQ(server.total_bytes, ring.total_bytes);
}

TEST(CostModel, ClosedFormsOfPowersOfTwo) {
  for (const std::int64_t ranks : {2, 4, 8, 64, 1024}) {
    const auto k = static_cast<double>(ranks);
    const double log = std::log2(k);
    const std::int64_t bytes = 1'048'576 * 3;
    const auto s = static_cast<double>(bytes);
    const double pass = wire(s * (k - 1) / k);  // all but a rank's own part

    expect_near(seconds(kReduceScatter, kRing, ranks, bytes), (k - 1) * (kAlpha + wire(s / k)));
    expect_near(seconds(kAllGather, kRing, ranks, bytes), (k - 1) * (kAlpha + wire(s / k)));
    expect_near(seconds(kAllReduce, kRing, ranks, bytes), 2 * (k - 1) * (kAlpha + wire(s / k)));
    expect_near(seconds(kBroadcast, kRing, ranks, bytes), (2 * k - 2) * (kAlpha + wire(s / k)));

    expect_near(seconds(kReduceScatter, kHalvingDoubling, ranks, bytes), log * kAlpha + pass);
    expect_near(seconds(kAllGather, kHalvingDoubling, ranks, bytes), log * kAlpha + pass);
    expect_near(seconds(kAllReduce, kHalvingDoubling, ranks, bytes), 2 * log * kAlpha + 2 * pass);
    expect_near(seconds(kBroadcast, kHalvingDoubling, ranks, bytes), 2 * log * kAlpha + 2 * pass);

    expect_near(seconds(kBroadcast, kTree, ranks, bytes), log * (kAlpha + wire(s)));
    expect_near(seconds(kAllReduce, kTree, ranks, bytes), 2 * log * (kAlpha + wire(s)));
    expect_near(seconds(kReduceScatter, kTree, ranks, bytes), log * (kAlpha + wire(s)) + log * kAlpha + pass);
    expect_near(seconds(kAllGather, kTree, ranks, bytes), log * (kAlpha + wire(s)) + log * kAlpha + pass);

    expect_near(seconds(kBroadcast, kServer, ranks, bytes), (k - 1) * (kAlpha + wire(s)));
    expect_near(seconds(kAllReduce, kServer, ranks, bytes), 2 * (k - 1) * (kAlpha + wire(s)));
    expect_near(seconds(kReduceScatter, kServer, ranks, bytes), (k - 1) * (2 * kAlpha + wire(s) + wire(s / k)));
    expect_near(seconds(kAllGather, kServer, ranks, bytes), (k - 1) * (2 * kAlpha + wire(s / k) + pass));
  }
}

// Seven ranks: four of them halve and double, the three others hand over and get back.
TEST(CostModel, RanksBeyondAPowerOfTwoTakeAStepMoreAtBothEnds) {
  const std::int64_t bytes = 7'000;
  const double s = 7'000.0;
  expect_near(seconds(kAllReduce, kHalvingDoubling, 7, bytes), 6 * kAlpha + 2 * wire(s) + 2 * wire(s * 3 / 4));
  // Parts of 1000 bytes lie 2, 2, 2, 1: the halves have 4 and 3 of them, then 2 and at most 2.
  expect_near(seconds(kReduceScatter, kHalvingDoubling, 7, bytes), 4 * kAlpha + wire(s + 4000 + 2000 + 1000));
  expect_near(seconds(kAllGather, kHalvingDoubling, 7, bytes), 4 * kAlpha + wire(1000 + 2000 + 4000 + 6000));
  // The scatter sends 3, 2 and 1 parts at most, then as the all-gather.
  expect_near(seconds(kBroadcast, kHalvingDoubling, 7, bytes), 7 * kAlpha + wire(6000 + 13000));
  expect_near(seconds(kBroadcast, kTree, 7, bytes), 3 * (kAlpha + wire(s)));

  const CollectiveCost cost = collective_cost(kAllReduce, kHalvingDoubling, 7, bytes, kLink);
  EXPECT_EQ(cost.steps, 6);
  EXPECT_EQ(cost.sent_bytes, 2 * 5250 + 7000);
  EXPECT_EQ(cost.link_bytes, 2 * cost.sent_bytes);
  EXPECT_EQ(cost.total_bytes, 2 * 6 * 7000);
}

TEST(CostModel, BytesOfTheBusiestRank) {
  const std::int64_t bytes = 800;
  const auto cost = [&](CommOp op, CollectiveAlgorithm algorithm) {
    return collective_cost(op, algorithm, 8, bytes, kLink);
  };
  EXPECT_EQ(cost(kBroadcast, kTree).sent_bytes, 3 * 800);  // the root's three children
  EXPECT_EQ(cost(kBroadcast, kTree).link_bytes, 3 * 800);
  EXPECT_EQ(cost(kAllReduce, kTree).link_bytes, 6 * 800);
  EXPECT_EQ(cost(kAllGather, kTree).sent_bytes, 3 * 800);
  EXPECT_EQ(cost(kReduceScatter, kTree).sent_bytes, 800 + 300);  // up, then the parts of three ranks
  EXPECT_EQ(cost(kBroadcast, kRing).sent_bytes, 800);
  EXPECT_EQ(cost(kBroadcast, kRing).link_bytes, 1600);
  EXPECT_EQ(cost(kReduceScatter, kServer).link_bytes, 7 * 800 + 7 * 100);
  EXPECT_EQ(cost(kAllGather, kServer).link_bytes, 7 * 100 + 7 * 700);
  EXPECT_EQ(cost(kBroadcast, kHalvingDoubling).sent_bytes, 2 * 700);
  EXPECT_EQ(cost(kAllReduce, kRing).steps, 14);
  EXPECT_EQ(cost(kAllReduce, kTree).steps, 6);
}

// Nobody can do with less: every rank must get what it lacks.
TEST(CostModel, TotalsAreNeverBelowWhatEveryRankLacks) {
  for (std::int64_t ranks = 2; ranks <= 33; ++ranks) {
    for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
      for (const CommOp op : {kAllReduce, kReduceScatter, kAllGather, kBroadcast}) {
        const CollectiveCost cost = collective_cost(op, algorithm, ranks, 1000 * ranks, kLink);
        const std::int64_t lacks = 1000 * ranks * (ranks - 1) * (op == kAllReduce ? 2 : 1);
        EXPECT_GE(cost.total_bytes, lacks) << name_of(op) << ' ' << name_of(algorithm) << ' ' << ranks;
        EXPECT_GE(cost.link_bytes, 2 * cost.total_bytes / ranks);
        EXPECT_GE(cost.sent_bytes, cost.total_bytes / ranks);
        EXPECT_GE(cost.seconds * kLink.bytes_per_second, static_cast<double>(cost.sent_bytes) * 0.999);
      }
    }
  }
}

// What communicators count is what a ring costs here.
TEST(CostModel, RingAgreesWithTheCountOfCommunicators) {
  for (const std::int64_t ranks : {1, 2, 3, 7, 8, 1000}) {
    for (const std::int64_t bytes :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{12'345'677}, std::int64_t{1} << 50}) {
      EXPECT_EQ(collective_cost(kAllReduce, kRing, ranks, bytes, kLink).sent_bytes,
                ring_all_reduce_bytes(bytes, ranks));
      EXPECT_EQ(collective_cost(kAllGather, kRing, ranks, bytes, kLink).sent_bytes,
                ring_all_gather_bytes(bytes, ranks));
    }
  }
}

// `at` bytes: `below` is cheaper with less, `above` with more.
void expect_crossover(CommOp op, std::int64_t ranks, double at, CollectiveAlgorithm below,
                      CollectiveAlgorithm above) {
  EXPECT_EQ(cheapest(op, ranks, static_cast<std::int64_t>(at * 0.999), kLink), below) << ranks;
  EXPECT_EQ(cheapest(op, ranks, static_cast<std::int64_t>(at * 1.001), kLink), above) << ranks;
}

TEST(CostModel, CheapestCrossesOverWhereTheFormulasDo) {
  const double per_latency = kAlpha * kLink.bytes_per_second;  // bytes that a link moves in one latency
  // lg K (α + S/β) = 2 lg K α + 2 S/β (K-1)/K
  for (const std::int64_t ranks : {8, 64, 512}) {
    const auto k = static_cast<double>(ranks);
    const double log = std::log2(k);
    expect_crossover(kBroadcast, ranks, per_latency * log / (log - 2 * (k - 1) / k), kTree, kHalvingDoubling);
  }
  // All-reduce on 7 ranks: 6α + (2 + 3/2) S/β = 12α + 12/7 S/β
  expect_crossover(kAllReduce, 7, per_latency * 6 / (3.5 - 12.0 / 7), kHalvingDoubling, kRing);
  // Powers of two: as many bytes as the ring in fewer steps.
  EXPECT_EQ(cheapest(kAllReduce, 8, 1'000'000'000, kLink), kHalvingDoubling);
  // Two ranks: all but the reductions of the server and the tree are one exchange of halves; a broadcast is one
  // message.
  EXPECT_EQ(cheapest(kAllReduce, 2, 1000, kLink), kRing);
  EXPECT_EQ(cheapest(kBroadcast, 2, 1000, kLink), kServer);
}

TEST(CostModel, OneRankCostsNothingAndMistakesAreRefused) {
  EXPECT_EQ(collective_cost(kAllReduce, kRing, 1, 1000, kLink).seconds, 0.0);
  EXPECT_EQ(collective_cost(kBroadcast, kTree, 1, 1000, kLink).link_bytes, 0);
  EXPECT_THROW(collective_cost(kAllToAll, kRing, 4, 1000, kLink), std::logic_error);
  EXPECT_THROW(collective_cost(kAllReduce, kRing, 0, 1000, kLink), std::logic_error);
  EXPECT_THROW(collective_cost(kAllReduce, kRing, 4, 1000, {1e-6, 0.0}), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
