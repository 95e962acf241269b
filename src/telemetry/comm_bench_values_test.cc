#include "telemetry/comm_bench_values.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <vector>

#include "base/float16.h"
#include "telemetry/comm_bench.h"

namespace meshtrain {
namespace {

constexpr CommCall kSum{.op = CommOp::kAllReduce, .reduce = ReduceOp::kSum};

BenchSource same(std::int64_t i) {
  return {0, i};
}

TEST(CommBenchValues, AreSmallWholeNumbersThatDifferByRankAndPlace) {
  std::set<std::vector<std::int64_t>> sequences;
  for (int rank = 0; rank < 8; ++rank) {
    for (std::int64_t begin = 0; begin < 8; ++begin) {
      std::vector<std::int64_t> sequence;
      for (std::int64_t i = begin; i < begin + 8; ++i) {
        sequence.push_back(bench_value(rank, i));
        EXPECT_GE(sequence.back(), 0);
        EXPECT_LE(sequence.back(), 15);
      }
      sequences.insert(sequence);
    }
  }
  EXPECT_EQ(sequences.size(), 64U);
}

TEST(CommBenchValues, WrongElementsAreCounted) {
  std::vector<float> out(100);
  for (std::int64_t i = 0; i < 100; ++i) {
    out[static_cast<std::size_t>(i)] =
        static_cast<float>(bench_value(0, i) + bench_value(1, i) + bench_value(2, i));
  }
  const Tensor tensor(out.data(), DType::kF32, {100});
  EXPECT_EQ(count_wrong(tensor, kSum, 3, same), 0);
  EXPECT_GT(count_wrong(tensor, kSum, 2, same), 50);  // a rank was forgotten
  out[3] += 1.0F;
  out[99] = std::bit_cast<float>(0x7FC00000);
  EXPECT_EQ(count_wrong(tensor, kSum, 3, same), 2);
  // Pieces of another rank.
  fill_with_bench_values(tensor, 2);
  const CommCall gather{.op = CommOp::kAllGather};
  EXPECT_EQ(count_wrong(tensor, gather, 3, [](std::int64_t i) { return BenchSource{2, i}; }), 0);
  EXPECT_GT(count_wrong(tensor, gather, 3, [](std::int64_t i) { return BenchSource{1, i}; }), 50);
  EXPECT_GT(count_wrong(tensor, gather, 3, [](std::int64_t i) { return BenchSource{2, i + 1}; }), 50);
}

// What communicator.h promises: whole numbers wrap, then the average is rounded towards zero; others once.
TEST(CommBenchValues, AveragesAreRoundedOnce) {
  constexpr int kRanks = 40;  // sums of some 300
  std::int64_t index = 0;
  std::int64_t sum = 0;
  for (; sum <= 256; ++index) {
    sum = 0;
    for (int r = 0; r < kRanks; ++r) sum += bench_value(r, index);
  }
  --index;
  const auto source = [&](std::int64_t) { return BenchSource{0, index}; };
  const CommCall average{.op = CommOp::kAllReduce, .reduce = ReduceOp::kAvg};
  std::uint8_t byte = static_cast<std::uint8_t>((sum - 256) / kRanks);
  EXPECT_EQ(count_wrong({&byte, DType::kU8, {1}}, average, kRanks, source), 0);
  BF16 half(static_cast<float>(sum) / 40.0F);
  EXPECT_EQ(count_wrong({&half, DType::kBF16, {1}}, average, kRanks, source), 0);
  double wide = static_cast<double>(sum) / 40.0;
  EXPECT_EQ(count_wrong({&wide, DType::kF64, {1}}, average, kRanks, source), 0);
}

TEST(CommBench, BusFactorsArePublishedOnes) {
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kAllToAll, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kBroadcast, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::kExchange, 8), 1.0);
}

}  // namespace
}  // namespace meshtrain
