#include "ops/square_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

// Of a whole origin in one shard.
double sum_of_squares(Stream& stream, const Tensor& x) {
  return combine_square_nodes(square_nodes(stream, x, 0));
}

using testing::HostTensor;
using testing::kFloatTypes;

using Lanes = std::array<double, 16>;

// The tree that the header states, spelled out, over a power of two of leaves.
Lanes stated_node(const std::vector<double>& x, std::size_t first_leaf, std::size_t leaves) {
  Lanes lanes{};
  if (leaves == 1) {
    for (std::size_t k = 0; k < 16 && first_leaf * 16 + k < x.size(); ++k) {
      lanes[k] = x[first_leaf * 16 + k] * x[first_leaf * 16 + k];
    }
    return lanes;
  }
  if (first_leaf * 16 >= x.size()) return lanes;
  const Lanes left = stated_node(x, first_leaf, leaves / 2);
  const Lanes right = stated_node(x, first_leaf + leaves / 2, leaves / 2);
  for (std::size_t k = 0; k < 16; ++k) lanes[k] = left[k] + right[k];
  return lanes;
}

double stated_sum(const std::vector<double>& x) {
  Lanes lanes = stated_node(x, 0, std::bit_ceil(x.size() / 16 + 1));
  for (const std::size_t half : {8U, 4U, 2U, 1U}) {
    for (std::size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// The nodes of all shards when the tensor is cut before each of the elements `cuts`.
std::vector<SquareNode> nodes_of_shards(Stream& stream, const Tensor& x, std::vector<std::int64_t> cuts,
                                        const std::vector<ElementRange>& without = {}) {
  cuts.push_back(x.numel());
  std::vector<SquareNode> all;
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    const auto nodes = square_nodes(stream, x.slice(0, begin, end - begin), begin, without);
    all.insert(all.end(), nodes.begin(), nodes.end());
    begin = end;
  }
  return all;
}

TEST(SquareSum, HasTheStatedBitsOfEveryTypeOnEveryTargetAndAnyThreads) {
  const auto cpu = make_cpu_device();
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 31, 33, 255, 4095, 4096, 4097, 16384, 300001, 1000000}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), n));
      const auto x = HostTensor::random(dtype, {n}, "x");
      const double expected = stated_sum(x.values());
      testing::for_each_target([&] {
        for (const int threads : {1, 2, 3, 7}) {
          Stream stream(*cpu, threads);
          EXPECT_EQ(sum_of_squares(stream, x), expected);
        }
      });
    }
  }
}

TEST(SquareSum, HasTheSameBitsForEveryCut) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const RandomStream random(7, "cuts");
  std::uint64_t draw = 0;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : {50, 1000, 4096, 70003}) {
      const auto x = HostTensor::random(dtype, {n}, "x");
      const double expected = stated_sum(x.values());
      for (int trial = 0; trial < 40; ++trial) {
        std::vector<std::int64_t> cuts(static_cast<std::size_t>(1 + trial % 7));
        for (std::int64_t& cut : cuts) {
          cut = static_cast<std::int64_t>(random.uniform(draw++) * static_cast<float>(n / 16 + 1)) * 16;
          cut = std::min(cut, n / 16 * 16);
        }
        std::sort(cuts.begin(), cuts.end());
        EXPECT_EQ(combine_square_nodes(nodes_of_shards(stream, x, cuts)), expected)
            << fmt::format("{} cut at {}", n, fmt::join(cuts, ", "));
      }
    }
  }
}

TEST(SquareSum, ZerosBehindTheEndChangeNoBit) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const auto x = HostTensor::random(DType::kF32, {5003}, "x");
  const double expected = sum_of_squares(stream, x);
  for (const std::int64_t padded : {5008, 5024, 8192, 100000}) {
    auto values = x.values();
    values.resize(static_cast<std::size_t>(padded));
    const auto y = HostTensor::of(DType::kF32, {padded}, values);
    EXPECT_EQ(sum_of_squares(stream, y), expected);
    EXPECT_EQ(combine_square_nodes(nodes_of_shards(stream, y, {16, 5008})), expected);
  }
}

TEST(SquareSum, CoversARangeWithTheLargestSubtrees) {
  for (std::int64_t begin = 0; begin < 70; ++begin) {
    for (std::int64_t end = begin; end < 140; ++end) {
      std::int64_t next = begin;
      for (const SquareNode& node : square_node_cover(begin * 16, (end - begin) * 16)) {
        EXPECT_EQ(node.index << node.height, next);
        next = (node.index + 1) << node.height;
        // Its parent would reach beyond the range.
        const std::int64_t parent = node.index / 2;
        EXPECT_TRUE(parent << (node.height + 1) < begin || (parent + 1) << (node.height + 1) > end);
      }
      EXPECT_EQ(next, end);
    }
  }
  const std::int64_t huge = std::int64_t{1} << 45U;
  EXPECT_EQ(square_node_cover(0, huge).size(), 1U);
  EXPECT_EQ(square_node_cover(16, huge - 32).size(), 2U * 40U);
  EXPECT_EQ(square_node_cover(16, 1).size(), 1U);
  EXPECT_TRUE(square_node_cover(16, 0).empty());
}

TEST(SquareSum, NodesAreThoseOfTheCover) {
  const auto x = HostTensor::random(DType::kF32, {70003}, "x");
  for (const auto& device : {make_cpu_device(), make_sim_device()}) {
    Stream stream(*device, 2);
    for (const std::int64_t first : {0, 16, 4096, 160000}) {
      const auto nodes = square_nodes(stream, x, first);
      const auto expected = square_node_cover(first, 70003);
      ASSERT_EQ(nodes.size(), expected.size());
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        EXPECT_EQ(nodes[i].index, expected[i].index);
        EXPECT_EQ(nodes[i].height, expected[i].height);
        EXPECT_EQ(nodes[i].lanes == Lanes{}, stream.kind() == DeviceKind::kSim);
      }
    }
    EXPECT_EQ(stream.total(), (OpCost{.flops = 0, .bytes = 4 * 4 * 70003}));
  }
}

// x with zeros in the ranges, and x with what no sum survives there.
struct WithoutRanges {
  WithoutRanges(const HostTensor& x, DType dtype, const std::vector<ElementRange>& ranges)
      : zeros(x), poison(x) {
    const std::int64_t count = x.tensor().numel();
    auto values = x.values();
    const auto put = [&](double value) {
      for (const ElementRange& range : ranges) {
        for (std::int64_t i = range.begin; i < std::min(range.end, count); ++i) {
          values[static_cast<std::size_t>(i)] = value;
        }
      }
      return HostTensor::of(dtype, {count}, values);
    };
    zeros = put(0.0);
    poison = put(NAN);
  }

  HostTensor zeros;
  HostTensor poison;
};

// Of up to `count` ranges that may touch, be empty and reach beyond `elements`.
std::vector<ElementRange> random_ranges(const RandomStream& random, std::uint64_t& draw, int count,
                                        std::int64_t elements) {
  std::vector<std::int64_t> ends;
  for (int i = 0; i < 2 * count; ++i) {
    ends.push_back(static_cast<std::int64_t>(random.uniform(draw++) * static_cast<float>(elements + 20)));
  }
  std::sort(ends.begin(), ends.end());
  std::vector<ElementRange> ranges;
  for (std::size_t i = 0; i < ends.size(); i += 2) ranges.push_back({ends[i], ends[i + 1]});
  return ranges;
}

void expect_same_nodes(const std::vector<SquareNode>& actual, const std::vector<SquareNode>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].index, expected[i].index);
    EXPECT_EQ(actual[i].height, expected[i].height);
    EXPECT_EQ(actual[i].lanes, expected[i].lanes);
  }
}

TEST(SquareSum, ElementsLeftOutCountAsZeros) {
  const auto cpu = make_cpu_device();
  const RandomStream random(7, "ranges");
  std::uint64_t draw = 0;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : {1, 15, 17, 100, 1000, 70003, 300001}) {
      const auto x = HostTensor::random(dtype, {n}, "x");
      for (const int count : {1, 2, 5, 100}) {
        const auto ranges = random_ranges(random, draw, count, n);
        SCOPED_TRACE(fmt::format("{} {} without {} ranges", name_of(dtype), n, count));
        const WithoutRanges without(x, dtype, ranges);
        const double expected = stated_sum(without.zeros.values());
        testing::for_each_target([&] {
          for (const int threads : {1, 3}) {
            Stream stream(*cpu, threads);
            const auto nodes = square_nodes(stream, without.poison, 0, ranges);
            EXPECT_EQ(combine_square_nodes(nodes), expected);
            expect_same_nodes(nodes, square_nodes(stream, without.zeros, 0));
          }
        });
      }
    }
  }
}

// Where ranges begin and end: at leaves and inside them, next to one another, nowhere and everywhere.
TEST(SquareSum, LeavesOutAnyRange) {
  const auto x = HostTensor::random(DType::kBF16, {333}, "x");
  testing::on_each_target([&](Stream& stream) {
    for (std::int64_t begin = 0; begin < 340; begin += 7) {
      for (std::int64_t end = begin; end < 340; end += 3) {
        const std::vector<ElementRange> ranges = {
            {begin / 2, begin / 2 + 1}, {begin + 1, end + 1}, {end + 1, end + 5}, {end + 16, end + 16}};
        const WithoutRanges without(x, DType::kBF16, ranges);
        EXPECT_EQ(combine_square_nodes(square_nodes(stream, without.poison, 0, ranges)),
                  stated_sum(without.zeros.values()))
            << begin << " " << end;
      }
    }
    const std::vector<ElementRange> all = {{0, 333}};
    EXPECT_EQ(combine_square_nodes(square_nodes(stream, x, 0, all)), 0.0);
    const std::vector<ElementRange> far = {{0, 4096}, {5000, 6000}};
    expect_same_nodes(square_nodes(stream, x, 4096, far), square_nodes(stream, x, 4096));
  });
}

// A column slice of a matrix: a range in every row, on every shard.
TEST(SquareSum, RangesOfTheOriginAreLeftOutOfEveryShard) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const std::int64_t n = 70003;
  const auto x = HostTensor::random(DType::kF32, {n}, "x");
  std::vector<ElementRange> ranges;
  for (std::int64_t row = 0; row < n; row += 101) ranges.push_back({row + 30, row + 77});
  const WithoutRanges without(x, DType::kF32, ranges);
  const double expected = stated_sum(without.zeros.values());
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{}, {16}, {35008}, {48, 48, 4096, 69984}, {70000}}) {
    EXPECT_EQ(combine_square_nodes(nodes_of_shards(stream, without.poison, cuts, ranges)), expected);
  }
}

TEST(SquareSum, ShowsWhatIsNotFinite) {
  for (const DType dtype : kFloatTypes) {
    for (const std::size_t place : {0, 4095, 4096, 9998}) {
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        auto values = HostTensor::random(dtype, {9999}, "x").values();
        values[place] = static_cast<double>(bad);
        const auto x = HostTensor::of(dtype, {9999}, values);
        testing::on_each_target([&](Stream& stream) {
          EXPECT_FALSE(std::isfinite(sum_of_squares(stream, x)));
          EXPECT_FALSE(std::isfinite(combine_square_nodes(nodes_of_shards(stream, x, {4080}))));
        });
      }
    }
  }
}

TEST(SquareSum, SquaresNeitherOverflowNorVanish) {
  testing::on_each_target([&](Stream& stream) {
    for (const float v : {3e38F, 1e-45F}) {
      const auto x = HostTensor::of(DType::kF32, {2}, {v, -v});
      EXPECT_EQ(sum_of_squares(stream, x), 2.0 * static_cast<double>(v) * static_cast<double>(v));
    }
  });
}

TEST(SquareSum, RefusesGapsAndBrokenContracts) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const auto x = HostTensor::random(DType::kF32, {1000}, "x");
  EXPECT_THROW(square_nodes(stream, x, 8), std::logic_error);
  EXPECT_THROW(square_nodes(stream, x, -16), std::logic_error);
  EXPECT_THROW(square_nodes(stream, HostTensor(DType::kI32, {16}), 0), std::logic_error);
  EXPECT_THROW(square_nodes(stream, HostTensor(DType::kF32, {4, 8}).tensor().slice(1, 0, 4), 0),
               std::logic_error);
  for (const std::vector<ElementRange>& ranges :
       {std::vector<ElementRange>{{5, 9}, {8, 12}}, {{10, 12}, {3, 4}}, {{12, 10}}, {{-1, 5}}}) {
    EXPECT_THROW(square_nodes(stream, x, 0, ranges), std::logic_error);
  }
  const auto nodes = nodes_of_shards(stream, x, {16, 496});
  ASSERT_GT(nodes.size(), 4U);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto broken = nodes;
    if (i + 1 < nodes.size()) {
      broken.erase(broken.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THROW(combine_square_nodes(broken), std::logic_error) << "without node " << i;
    }
    broken = nodes;
    broken.insert(broken.begin() + static_cast<std::ptrdiff_t>(i), nodes[i]);
    EXPECT_THROW(combine_square_nodes(broken), std::logic_error) << "with node " << i << " twice";
  }
  SquareNode wrong = nodes[0];
  wrong.height = 60;
  EXPECT_THROW(combine_square_nodes(std::span(&wrong, 1)), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
