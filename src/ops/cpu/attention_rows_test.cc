#include "ops/cpu/attention_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "ops/testing.h"

namespace meshtrain::ops::cpu {
namespace {

using ops::testing::for_each_target;

// 2^x is good to 3e-7; an argument of magnitude |x| carries two fp32 roundings, times ln 2.
double exponential_error(double argument) {
  return 3e-7 + std::abs(argument) * 2 * 0x1p-24;
}

TEST(OnlineSoftmax, WeightsAndSumsAreExponentials) {
  constexpr std::int64_t kWidth = 192;
  const RandomStream random(1, "scores");
  std::vector<float> scores(kWidth);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -60.0F * random.uniform(i);
  scores[77] = 3.0F;
  for_each_target([&] {
    for (const std::int64_t visible : {std::int64_t{78}, std::int64_t{100}, kWidth}) {
      std::vector<float> weights(kWidth, 9.0F);
      float max = 0.0F;
      float sum = 0.0F;
      float rescale = 9.0F;
      online_softmax(scores.data(), 1, kWidth, &visible, 0.5F, true, Operand::kF32, weights.data(), kWidth,
                     {&max, &sum, &rescale});
      EXPECT_FLOAT_EQ(max, 1.5F * std::numbers::log2e_v<float>);
      EXPECT_EQ(rescale, 0.0F);
      double total = 0.0;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i >= visible) {
          EXPECT_EQ(weights[at], 0.0F);
          continue;
        }
        const double argument = 0.5 * scores[at] - 1.5;
        EXPECT_NEAR(weights[at] / std::exp(argument), 1.0, exponential_error(argument)) << i;
        total += std::exp(argument);
      }
      EXPECT_NEAR(sum / total, 1.0, 1e-6);
    }
  });
}

TEST(OnlineSoftmax, LaterBlocksRescaleEarlierOnes) {
  for_each_target([] {
    const std::vector<float> first(64, 0.0F);
    std::vector<float> second(64, 0.0F);
    second[5] = 4.0F;
    std::vector<float> weights(64);
    float max = 0.0F;
    float sum = 0.0F;
    float rescale = 0.0F;
    const SoftmaxState state{&max, &sum, &rescale};
    const std::int64_t all = 64;
    const std::int64_t none = 0;
    online_softmax(first.data(), 1, 64, &all, 1.0F, true, Operand::kF32, weights.data(), 64, state);
    EXPECT_EQ(sum, 64.0F);
    online_softmax(first.data(), 1, 64, &none, 1.0F, false, Operand::kF32, weights.data(), 64, state);
    EXPECT_EQ(sum, 64.0F);
    EXPECT_EQ(rescale, 1.0F);
    EXPECT_EQ(weights, std::vector<float>(64, 0.0F));
    online_softmax(second.data(), 1, 64, &all, 1.0F, false, Operand::kF32, weights.data(), 64, state);
    EXPECT_FLOAT_EQ(rescale, std::exp(-4.0F));
    EXPECT_FLOAT_EQ(sum, 127.0F * std::exp(-4.0F) + 1.0F);
    EXPECT_FLOAT_EQ(weights[5], 1.0F);
  });
}

// Rounding to bf16 is to nearest even, in whole vectors and beyond them.
TEST(SoftmaxGradient, RoundsToNearestEvenEverywhere) {
  constexpr std::int64_t kWidth = 96;
  std::vector<float> scores(kWidth);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -0.01F * static_cast<float>(i);
  const std::vector<float> d_weights(kWidth, 3.0F);
  const std::vector<float> lse(kWidth, 0.0F);
  const std::vector<float> delta(kWidth, 1.0F);
  std::vector<float> p(kWidth);
  std::vector<float> ds(kWidth);
  std::vector<BF16> p16(kWidth);
  std::vector<BF16> ds16(kWidth);
  for_each_target([&] {
    for (const std::int64_t first : {0, 5, 96, 200}) {
      ScoreGradients g;
      g.keys = 1;
      g.width = kWidth;
      g.queries = kWidth;
      g.first = first;
      g.scale = 0.5F;
      g.scores = scores.data();
      g.d_weights = d_weights.data();
      g.lse = lse.data();
      g.delta = delta.data();
      g.weights = p.data();
      g.d_scores = ds.data();
      softmax_gradient(g, Operand::kF32);
      g.weights = p16.data();
      g.d_scores = ds16.data();
      softmax_gradient(g, Operand::kBF16);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const bool seen = static_cast<std::int64_t>(i) >= first;
        const double weight = seen ? std::exp(0.5 * scores[i]) : 0.0;
        EXPECT_NEAR(p[i], weight, 4e-7);
        EXPECT_NEAR(ds[i], weight * 0.5 * 2.0, 4e-7);
        EXPECT_EQ(p16[i].bits, bf16_bits(p[i]));
        EXPECT_EQ(ds16[i].bits, bf16_bits(ds[i]));
      }
    }
  });
}

TEST(RowDots, EqualSums) {
  for (const DType dtype : ops::testing::kFloatTypes) {
    const auto a = ops::testing::HostTensor::random(dtype, {3, 70}, "a");
    const auto b = ops::testing::HostTensor::random(dtype, {3, 67}, "b");
    for_each_target([&] {
      std::array<float, 3> out{};
      row_dots(a.tensor().raw(), 70, b.tensor().raw(), 67, dtype, 3, 67, out.data());
      const auto av = a.values();
      const auto bv = b.values();
      for (std::size_t r = 0; r < 3; ++r) {
        double sum = 0.0;
        for (std::size_t i = 0; i < 67; ++i) sum += av[r * 70 + i] * bv[r * 67 + i];
        EXPECT_NEAR(out[r], sum, 1e-4);
      }
    });
  }
}

}  // namespace
}  // namespace meshtrain::ops::cpu
