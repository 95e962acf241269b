#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "ops/reference.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::StridedMatrix;

// Ids below `vocab`, many of them repeated.
HostTensor random_tokens(std::int64_t count, std::int64_t vocab) {
  const RandomStream random(1, "tokens");
  std::vector<double> ids;
  for (std::int64_t m = 0; m < count; ++m) {
    const auto range = static_cast<std::uint64_t>(m % 2 == 0 ? vocab : std::min<std::int64_t>(vocab, 3));
    ids.push_back(static_cast<double>(random.bits(static_cast<std::uint64_t>(m)) % range));
  }
  return HostTensor::of(DType::kI32, {count}, ids);
}

reference::Ids ids_of(const HostTensor& tokens) {
  const auto values = tokens.values();
  return {values.begin(), values.end()};
}

// start + the rows of dout in batch order, in fp32.
std::vector<double> added_in_order(const reference::Ids& ids, const std::vector<double>& dout,
                                   const std::vector<double>& start, std::size_t width) {
  std::vector<double> sum = start;
  for (std::size_t m = 0; m < ids.size(); ++m) {
    for (std::size_t i = 0; i < width; ++i) {
      double& to = sum[static_cast<std::size_t>(ids[m]) * width + i];
      to = static_cast<double>(static_cast<float>(to) + static_cast<float>(dout[m * width + i]));
    }
  }
  return sum;
}

using EmbeddingParam = std::tuple<DType, std::int64_t, std::int64_t>;

class EmbeddingTest : public ::testing::TestWithParam<EmbeddingParam> {
 protected:
  DType dtype = std::get<0>(GetParam());
  std::int64_t vocab = std::get<1>(GetParam());
  std::int64_t width = std::get<2>(GetParam());
  static constexpr std::int64_t kSeq = 9;
  static constexpr std::int64_t kRows = 4 * kSeq + 5;
  HostTensor tokens = random_tokens(kRows, vocab);
};

TEST_P(EmbeddingTest, ForwardEqualsReference) {
  const StridedMatrix table(dtype, vocab, width, "table");
  const StridedMatrix positions(dtype, kSeq + 4, width, "positions");
  on_each_target([&](Stream& stream) {
    const StridedMatrix out(dtype, kRows, width, "out");
    const auto w = static_cast<std::size_t>(width);
    embedding_forward(stream, tokens, table, {}, kSeq, 0, out);
    EXPECT_EQ(out.values(), reference::embedding(ids_of(tokens), table.values(), {}, w, kSeq, 0));
    out.expect_margins_untouched();

    embedding_forward(stream, tokens, table, positions, kSeq, 4, out);
    const auto exact = reference::embedding(ids_of(tokens), table.values(), positions.values(), w, kSeq, 4);
    EXPECT_EQ(out.values(), HostTensor::of(dtype, {kRows, width}, exact).values());
    out.expect_margins_untouched();
  });
}

TEST_P(EmbeddingTest, BackwardAddsInBatchOrderAndRoundsOnce) {
  const StridedMatrix dout(dtype, kRows, width, "dout");
  const auto expected = [&](DType gradient, std::int64_t rows, const reference::Ids& ids) {
    const auto sum = added_in_order(ids, dout.values(), StridedMatrix(gradient, rows, width, "d").values(),
                                    static_cast<std::size_t>(width));
    return HostTensor::of(gradient, {rows, width}, sum).values();
  };
  reference::Ids positions;
  for (std::int64_t m = 0; m < kRows; ++m) positions.push_back(static_cast<std::int32_t>(m % kSeq));
  on_each_target([&](Stream& stream) {
    for (const DType gradient : {DType::kF32, dtype}) {
      const StridedMatrix dtable(gradient, vocab, width, "d");
      embedding_backward(stream, tokens, dout, dtable);
      EXPECT_EQ(dtable.values(), expected(gradient, vocab, ids_of(tokens)));
      dtable.expect_margins_untouched();

      const StridedMatrix dpositions(gradient, kSeq + 1, width, "d");
      position_backward(stream, dout, kSeq, dpositions);
      EXPECT_EQ(dpositions.values(), expected(gradient, kSeq + 1, positions));
      dpositions.expect_margins_untouched();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, EmbeddingTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes), ::testing::Values(1, 5, 301),
                                            ::testing::Values(1, 7, 32, 80, 768)));

// As many ids a shard as hold the vocabulary: the last may lie beyond it, wholly too.
TEST_P(EmbeddingTest, ShardsAddUpToTheWholeTable) {
  const auto table = HostTensor::random(dtype, {vocab, width}, "table");
  const auto positions = HostTensor::random(dtype, {kSeq + 4, width}, "positions");
  on_each_target([&](Stream& stream) {
    const HostTensor whole(dtype, {kRows, width});
    embedding_forward(stream, tokens, table, positions, kSeq, 4, whole);
    for (const std::int64_t shards : {1, 2, 3, 7}) {
      SCOPED_TRACE(shards);
      const std::int64_t held = (vocab + shards - 1) / shards;
      std::vector<float> sum(static_cast<std::size_t>(kRows * width));
      for (std::int64_t s = 0; s < shards; ++s) {
        const auto shard = HostTensor::random(dtype, {held, width}, "padding");
        const std::int64_t count = std::clamp<std::int64_t>(vocab - s * held, 0, held);
        if (count > 0) {
          testing::set_values(shard.tensor().slice(0, 0, count),
                              testing::values_of(table.tensor().slice(0, s * held, count)));
        }
        // What was there before must not show.
        const StridedMatrix out(dtype, kRows, width, "out");
        embedding_forward(stream, tokens, shard, s == shards - 1 ? positions.tensor() : Tensor(), kSeq, 4, out,
                          s * held);
        out.expect_margins_untouched();
        const auto values = out.values();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(values[i]);
      }
      const auto rounded = HostTensor::of(dtype, {kRows, width}, {sum.begin(), sum.end()});
      EXPECT_TRUE(rounded.bytes() == whole.bytes());
    }
  });
}

TEST_P(EmbeddingTest, GradientsOfShardsAreThoseOfTheWholeTable) {
  const StridedMatrix dout(dtype, kRows, width, "dout");
  on_each_target([&](Stream& stream) {
    for (const DType gradient : {DType::kF32, dtype}) {
      const auto whole = HostTensor::random(gradient, {vocab, width}, "d");
      const auto start = whole.values();
      embedding_backward(stream, tokens, dout, whole);
      for (const std::int64_t shards : {1, 2, 3, 7}) {
        SCOPED_TRACE(shards);
        const std::int64_t held = (vocab + shards - 1) / shards;
        const HostTensor all(gradient, {shards * held, width});
        testing::set_values(all.tensor().slice(0, 0, vocab), start);
        for (std::int64_t s = 0; s < shards; ++s) {
          embedding_backward(stream, tokens, dout, all.tensor().slice(0, s * held, held), s * held);
        }
        auto expected = whole.bytes();
        // Padding stays zero.
        expected.resize(all.bytes().size());
        EXPECT_TRUE(all.bytes() == expected);
      }
    }
  });
}

TEST(Embedding, SameBitsOnAnyThreads) {
  // Narrow tables too, where threads share out rows besides columns.
  for (const std::int64_t width : {16, 100, 768}) {
    const std::int64_t rows = 500000 / width;
    const auto tokens = random_tokens(rows, 77);
    for (const DType dtype : kFloatTypes) {
      const auto dout = HostTensor::random(dtype, {rows, width}, "dout");
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor dtable(DType::kF32, {77, width});
        embedding_backward(stream, tokens, dout, dtable);
        return dtable;
      });
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor dpositions(DType::kF32, {50, width});
        position_backward(stream, dout, 50, dpositions);
        return dpositions;
      });
      if (dtype == DType::kF32) continue;
      testing::expect_rounded_once(dtype, {77, width}, [&](Stream& stream, const Tensor& dtable) {
        embedding_backward(stream, tokens, dout, dtable);
      });
      testing::expect_rounded_once(dtype, {50, width}, [&](Stream& stream, const Tensor& dpositions) {
        position_backward(stream, dout, 50, dpositions);
      });
    }
  }
}

// Ids of one, two and three digits of the sort by tokens.
TEST(Embedding, RoundsRowsOfALargeTableOnce) {
  for (const std::int64_t vocab : {1023, 1025, 50257, 1100000}) {
    const auto tokens = random_tokens(3000, vocab);
    const auto dout = HostTensor::random(DType::kBF16, {3000, 3}, "dout");
    testing::expect_rounded_once(DType::kBF16, {vocab, 3}, [&](Stream& stream, const Tensor& dtable) {
      embedding_backward(stream, tokens, dout, dtable);
    });
  }
}

// 1 + 2^-9 is 1 in bf16; 256 such additions are not.
TEST(Embedding, KeepsWhatAFrequentTokenAddsUpTo) {
  const auto tokens = HostTensor::of(DType::kI32, {256}, std::vector<double>(256, 1.0));
  const auto dout = HostTensor::of(DType::kBF16, {256, 1}, std::vector<double>(256, 0x1p-9));
  on_each_target([&](Stream& stream) {
    const auto dtable = HostTensor::of(DType::kBF16, {2, 1}, {1.0, 1.0});
    embedding_backward(stream, tokens, dout, dtable);
    EXPECT_EQ(dtable.values(), (std::vector<double>{1.0, 1.5}));
  });
}

TEST(Embedding, IdsThatTheTableDoesNotHoldAreZerosAndMoveNothing) {
  const auto tokens = HostTensor::of(DType::kI32, {5}, {9, 10, 12, 13, 2147483647});
  const auto table = HostTensor::of(DType::kF32, {3, 1}, {1, 2, 3});
  const auto positions = HostTensor::of(DType::kF32, {5, 1}, {10, 20, 30, 40, 50});
  const auto dout = HostTensor::of(DType::kF32, {5, 1}, {1, 10, 100, 1000, 10000});
  on_each_target([&](Stream& stream) {
    const auto out = HostTensor::random(DType::kF32, {5, 1}, "out");
    embedding_forward(stream, tokens, table, {}, 5, 0, out, 10);
    EXPECT_EQ(out.values(), (std::vector<double>{0, 1, 3, 0, 0}));
    embedding_forward(stream, tokens, table, positions, 5, 0, out, 10);
    EXPECT_EQ(out.values(), (std::vector<double>{10, 21, 33, 40, 50}));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto dtable = HostTensor::of(dtype, {3, 1}, {1, 1, 1});
      embedding_backward(stream, tokens, HostTensor::of(dtype, {5, 1}, dout.values()), dtable, 10);
      EXPECT_EQ(dtable.values(), (std::vector<double>{11, 1, 101}));
      // A shard beyond the vocabulary, and beyond every int32.
      for (const std::int64_t first : {std::int64_t{14}, std::int64_t{1} << 31, std::int64_t{1} << 40}) {
        embedding_backward(stream, tokens, HostTensor::of(dtype, {5, 1}, dout.values()), dtable, first);
        embedding_forward(stream, tokens, table, {}, 5, 0, out, first);
        EXPECT_EQ(dtable.values(), (std::vector<double>{11, 1, 101}));
        EXPECT_EQ(out.values(), std::vector<double>(5, 0.0));
      }
    }
  });
}

TEST(Embedding, RefusesNegativeTokensAndPositionsBeyondTheTable) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor table(DType::kF32, {4, 8});
  const HostTensor out(DType::kF32, {2, 8});
  const auto low = HostTensor::of(DType::kI32, {2}, {-1, 0});
  const auto good = HostTensor::of(DType::kI32, {2}, {0, 3});
  EXPECT_THROW(embedding_forward(stream, low, table, {}, 2, 0, out), std::logic_error);
  EXPECT_THROW(embedding_forward(stream, good, table, {}, 2, 0, out, -1), std::logic_error);
  EXPECT_THROW(embedding_backward(stream, low, out, table), std::logic_error);
  EXPECT_THROW(embedding_backward(stream, good, out, table, -1), std::logic_error);
  EXPECT_THROW(embedding_backward(stream, good, out, HostTensor(DType::kBF16, {5, 8})), std::logic_error);
  EXPECT_THROW(embedding_backward(stream, good, out, HostTensor(DType::kF32, {5, 7})), std::logic_error);
  EXPECT_THROW(position_backward(stream, out, 2, HostTensor(DType::kBF16, {4, 8})), std::logic_error);
  EXPECT_THROW(embedding_forward(stream, good, table, table, 2, 3, out), std::logic_error);
  EXPECT_NO_THROW(embedding_forward(stream, good, table, table, 2, 2, out));
}

TEST(Embedding, TakesNoTokens) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const HostTensor table(DType::kF32, {4, 8});
  const HostTensor none(DType::kF32, {0, 8});
  const HostTensor tokens(DType::kI32, {0});
  embedding_forward(stream, tokens, table, table, 4, 0, none);
  embedding_backward(stream, tokens, none, table);
  position_backward(stream, none, 4, table);
  EXPECT_EQ(table.values(), std::vector<double>(32, 0.0));
  const HostTensor half(DType::kBF16, {4, 8});
  embedding_backward(stream, tokens, HostTensor(DType::kBF16, {0, 8}), half);
  position_backward(stream, HostTensor(DType::kBF16, {0, 8}), 4, half);
  EXPECT_EQ(half.values(), std::vector<double>(32, 0.0));
}

}  // namespace
}  // namespace meshtrain::ops
