#include "data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/test_files.h"

namespace meshtrain {
namespace {

// Token i is i.
MemoryTokens counting(std::int32_t size) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  return MemoryTokens("counting", std::move(ids));
}

std::vector<std::int64_t> all_of(const Permutation& permutation, std::int64_t size) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(permutation(i));
  return values;
}

TEST(Permutation, IsABijection) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 65537}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      std::vector<std::int64_t> values = all_of(Permutation(size, seed, 3), size);
      std::sort(values.begin(), values.end());
      for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i) << size;
    }
  }
}

TEST(Permutation, HugeSizes) {
  for (const std::int64_t size : {(std::int64_t{1} << 40U) + 1, std::int64_t{1} << 62U}) {
    const Permutation permutation(size, 1, 0);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 1000; ++i) {
      const std::int64_t value = permutation(size - 1 - i);
      EXPECT_GE(value, 0);
      EXPECT_LT(value, size);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_GT(*seen.rbegin(), size / 2);
  }
  EXPECT_THROW(Permutation(0, 1, 0), std::logic_error);
  EXPECT_THROW(Permutation(5, 1, 0)(5), std::logic_error);
}

TEST(Permutation, SeedsAndEpochsDiffer) {
  const auto base = all_of(Permutation(1000, 1, 0), 1000);
  EXPECT_EQ(base, all_of(Permutation(1000, 1, 0), 1000));
  for (const auto& other : {all_of(Permutation(1000, 2, 0), 1000), all_of(Permutation(1000, 1, 1), 1000)}) {
    int equal = 0;
    for (std::size_t i = 0; i < 1000; ++i) equal += base[i] == other[i] ? 1 : 0;
    EXPECT_LT(equal, 10);  // one is expected
  }
}

// Fixed, so that an old run's order is never changed by accident.
TEST(Permutation, OrderIsAContract) {
  EXPECT_EQ(all_of(Permutation(10, 1, 0), 10), (std::vector<std::int64_t>{5, 9, 2, 7, 1, 0, 6, 3, 8, 4}));
}

// Where each i lands is uniform, over seeds: chi-squared with 99 degrees of freedom stays below 149 with
// probability 0.999; the seeds are fixed, so it either holds or not.
TEST(Permutation, Mixes) {
  constexpr int kSize = 100;
  for (const int i : {0, 1, 50, 99}) {
    std::vector<int> counts(kSize);
    for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
      ++counts[static_cast<std::size_t>(Permutation(kSize, seed, 0)(i))];
    }
    double chi_squared = 0;
    for (const int count : counts) chi_squared += (count - 100.0) * (count - 100.0) / 100.0;
    EXPECT_LT(chi_squared, 149.0) << i;
  }
}

// Neighbors do not stay together: the correlation of successive values is that of a random order.
TEST(Permutation, NeighborsPart) {
  constexpr std::int64_t kSize = 65537;
  const auto values = all_of(Permutation(kSize, 1, 0), kSize);
  double sum = 0;
  const double mean = static_cast<double>(kSize - 1) / 2;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    sum += (static_cast<double>(values[i]) - mean) * (static_cast<double>(values[i + 1]) - mean);
  }
  const double variance = static_cast<double>(kSize) * static_cast<double>(kSize) / 12;
  // Four standard deviations of a random order's.
  EXPECT_LT(std::abs(sum / static_cast<double>(kSize) / variance), 4 / std::sqrt(static_cast<double>(kSize)));
}

TEST(BatchSampler, TokensAndTargets) {
  const MemoryTokens source = counting(26);
  const BatchSampler sampler(source, {.seq_len = 5, .shuffle = false, .vocab = 26});
  EXPECT_EQ(sampler.samples_per_epoch(), 5);
  const Batch batch = sampler.batch(3, 3);  // runs on into the next epoch
  EXPECT_EQ(batch.count, 3);
  EXPECT_EQ(batch.seq_len, 5);
  EXPECT_EQ(batch.tokens, (std::vector<std::int32_t>{15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 1, 2, 3, 4, 5}));
}

TEST(BatchSampler, WholeSamplesOnly) {
  for (const auto& [size, samples] :
       std::vector<std::pair<std::int32_t, std::int64_t>>{{6, 1}, {10, 1}, {11, 2}}) {
    const MemoryTokens source = counting(size);
    EXPECT_EQ(BatchSampler(source, {.seq_len = 5, .vocab = 26}).samples_per_epoch(), samples);
  }
  for (const std::int32_t size : {0, 1, 5}) {
    const MemoryTokens source = counting(size);
    const std::string message =
        message_of<UserError>([&] { BatchSampler(source, {.seq_len = 5, .vocab = 26}); });
    expect_contains(message, "\"counting\"");
    expect_contains(message, fmt::format("{} tokens", size));
    expect_contains(message, "data.seq_len = 5");
  }
}

TEST(BatchSampler, AnEpochHasEverySampleOnce) {
  const MemoryTokens source = counting(1001);
  const BatchSampler sampler(source, {.seq_len = 10, .seed = 4, .vocab = 1001});
  for (const std::int64_t epoch : {0, 1, 7}) {
    std::set<std::int32_t> starts;
    const Batch batch = sampler.batch(epoch * 100, 100);
    for (std::size_t i = 0; i < 100; ++i) starts.insert(batch.tokens[i * 10]);
    EXPECT_EQ(starts.size(), 100U);
  }
}

// Global step s covers samples [s·GBS, (s+1)·GBS) whatever the mesh: the slices of the ranks are disjoint and
// together they are what one rank sees.
TEST(BatchSampler, TheSplitDoesNotChangeTheOrder) {
  const MemoryTokens source = counting(1001);
  const BatchSampler sampler(source, {.seq_len = 10, .seed = 4, .vocab = 1001});
  constexpr std::int64_t kGlobal = 24;
  for (std::int64_t step = 0; step < 10; ++step) {
    const Batch whole = sampler.batch(step * kGlobal, kGlobal);
    for (const std::int64_t ranks : {2, 3, 8, 24}) {
      std::vector<std::int32_t> together;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t share = kGlobal / ranks;
        const Batch slice = sampler.batch(step * kGlobal + rank * share, share);
        together.insert(together.end(), slice.tokens.begin(), slice.tokens.end());
      }
      EXPECT_EQ(together, whole.tokens);
    }
  }
}

TEST(BatchSampler, ForeignIdsAreNamedWhenRead) {
  const MemoryTokens source = counting(26);
  const BatchSampler sampler(source, {.seq_len = 5, .shuffle = false, .vocab = 20});
  (void)sampler.batch(0, 3);
  const std::string message = message_of<RunError>([&] { (void)sampler.batch(3, 1); });
  expect_contains(message, "\"counting\" hold the id 20 at position 20");
  const MemoryTokens negative("negative", {0, 1, -1, 2});
  EXPECT_THROW(BatchSampler(negative, {.seq_len = 3, .vocab = 20}).batch(0, 1), RunError);
}

}  // namespace
}  // namespace meshtrain
