#include "ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/reference.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_close;
using testing::expect_rounded;
using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::some_targets;
using testing::StridedMatrix;
using testing::values_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kScale = 0.125F;

reference::Ids ids_of(const HostTensor& targets) {
  const auto values = targets.values();
  return {values.begin(), values.end()};
}

struct Sizes {
  std::int64_t rows;
  std::int64_t vocab;
  std::int64_t padding;
};

class CrossEntropyTest : public ::testing::TestWithParam<std::tuple<DType, Sizes>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  Sizes sizes = std::get<1>(GetParam());
  std::int64_t width = sizes.vocab + sizes.padding;
  StridedMatrix logits{DType::kF32, sizes.rows, width, "logits", 4.0};
  HostTensor targets = some_targets(sizes.rows, sizes.vocab);

  void SetUp() override {
    // What lies in the padding must not matter.
    if (sizes.padding > 0) {
      testing::fill_random(logits.tensor().slice(1, sizes.vocab, sizes.padding), "padding", 1.0, 1e6);
    }
  }
  reference::CrossEntropyResult expected() const {
    return reference::cross_entropy(logits.values(), ids_of(targets), static_cast<std::size_t>(width),
                                    static_cast<std::size_t>(sizes.vocab), static_cast<double>(kScale));
  }
};

TEST_P(CrossEntropyTest, EqualsReference) {
  const auto reference = expected();
  on_each_target([&](Stream& stream) {
    const HostTensor losses(DType::kF32, {sizes.rows});
    const StridedMatrix dlogits(dtype, sizes.rows, width, "dlogits");
    cross_entropy(stream, {.logits = logits,
                           .targets = targets,
                           .vocab = sizes.vocab,
                           .losses = losses,
                           .dlogits = dlogits,
                           .scale = kScale});
    expect_close(losses.values(), reference.losses, 1e-6, 1e-6);
    expect_rounded(dlogits, reference.dlogits, 32, 1e-8);
    dlogits.expect_margins_untouched();

    const HostTensor losses_alone(DType::kF32, {sizes.rows});
    cross_entropy(stream, {.logits = logits, .targets = targets, .vocab = sizes.vocab, .losses = losses_alone});
    EXPECT_EQ(losses_alone.values(), losses.values());
  });
}

// The gradient may take the logits' place: narrower rows then start where the fp32 rows do.
TEST_P(CrossEntropyTest, GradientInTheLogitsPlaceHasTheSameBits) {
  on_each_target([&](Stream& stream) {
    const HostTensor losses(DType::kF32, {sizes.rows});
    const HostTensor apart(dtype, {sizes.rows, width});
    CrossEntropy args{.logits = logits,
                      .targets = targets,
                      .vocab = sizes.vocab,
                      .losses = losses,
                      .dlogits = apart,
                      .scale = kScale};
    cross_entropy(stream, args);

    const HostTensor place = HostTensor::of(DType::kF32, {sizes.rows, width}, logits.values());
    args.logits = place;
    args.dlogits = Tensor(place.tensor().raw(), dtype, {sizes.rows, width}, {width * 4 / size_of(dtype), 1});
    cross_entropy(stream, args);
    EXPECT_EQ(values_of(args.dlogits), apart.values());
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::Values(Sizes{1, 1, 0}, Sizes{7, 2, 0}, Sizes{7, 5, 3},
                                                              Sizes{129, 33, 0}, Sizes{3, 2048, 64},
                                                              Sizes{2, 4097, 0}, Sizes{4, 50257, 47})));

TEST(CrossEntropy, FullyMaskedBatchIsZero) {
  const auto logits = HostTensor::random(DType::kF32, {5, 40}, "logits");
  const auto targets = HostTensor::of(DType::kI32, {5}, std::vector<double>(5, kIgnoredTarget));
  on_each_target([&](Stream& stream) {
    const auto losses = HostTensor::random(DType::kF32, {5}, "losses");
    const auto dlogits = HostTensor::random(DType::kBF16, {5, 40}, "dlogits");
    cross_entropy(stream,
                  {.logits = logits, .targets = targets, .vocab = 37, .losses = losses, .dlogits = dlogits});
    EXPECT_EQ(losses.values(), std::vector<double>(5, 0.0));
    EXPECT_EQ(dlogits.values(), std::vector<double>(200, 0.0));
  });
}

// Uniform logits of any size: the loss is log V, each gradient 1/V.
TEST(CrossEntropy, ClosedForms) {
  const std::int64_t vocab = 5000;
  for (const double level : {0.0, 1e30, -3e38}) {
    on_each_target([&](Stream& stream) {
      const auto logits =
          HostTensor::of(DType::kF32, {1, vocab}, std::vector<double>(static_cast<std::size_t>(vocab), level));
      const auto targets = HostTensor::of(DType::kI32, {1}, {4999});
      const HostTensor losses(DType::kF32, {1});
      const HostTensor dlogits(DType::kF32, {1, vocab});
      cross_entropy(
          stream, {.logits = logits, .targets = targets, .vocab = vocab, .losses = losses, .dlogits = dlogits});
      EXPECT_NEAR(losses.values()[0], std::log(5000.0), 1e-6);
      EXPECT_NEAR(dlogits.values()[0], 1.0 / 5000.0, 1e-10);
      EXPECT_NEAR(dlogits.values()[4999], 1.0 / 5000.0 - 1.0, 1e-7);
    });
  }
}

// A sure prediction: the loss and the target's gradient are small differences of numbers near 1.
TEST(CrossEntropy, SurePredictions) {
  on_each_target([&](Stream& stream) {
    for (const double lead : {5.0, 10.0, 40.0, 200.0}) {
      const auto logits = HostTensor::of(DType::kF32, {1, 3}, {lead, 0.0, -kInfinity});
      const auto targets = HostTensor::of(DType::kI32, {1}, {0});
      const HostTensor losses(DType::kF32, {1});
      const HostTensor dlogits(DType::kF32, {1, 3});
      cross_entropy(stream,
                    {.logits = logits, .targets = targets, .vocab = 3, .losses = losses, .dlogits = dlogits});
      const double p = std::exp(-lead);
      EXPECT_NEAR(losses.values()[0], std::log1p(p), 0x1p-24);
      EXPECT_FALSE(std::signbit(losses.values()[0]));
      EXPECT_NEAR(dlogits.values()[0], -p / (1.0 + p), 0x1p-24);
      EXPECT_NEAR(dlogits.values()[1], p / (1.0 + p), 1e-6 * p + 1e-44);
      EXPECT_EQ(dlogits.values()[2], 0.0);
    }
  });
}

TEST(CrossEntropy, WhatIsNotFiniteReachesTheLoss) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::int64_t vocab : {5, 50, 5000}) {
    for (const std::int64_t place : {std::int64_t{1}, vocab - 1}) {
      for (const double bad : {nan, kInfinity}) {
        on_each_target([&](Stream& stream) {
          auto values = HostTensor::random(DType::kF32, {vocab}, "logits").values();
          values[static_cast<std::size_t>(place)] = bad;
          const auto logits = HostTensor::of(DType::kF32, {1, vocab}, values);
          const auto targets = HostTensor::of(DType::kI32, {1}, {0});
          const HostTensor losses(DType::kF32, {1});
          cross_entropy(stream, {.logits = logits, .targets = targets, .vocab = vocab, .losses = losses});
          EXPECT_FALSE(std::isfinite(losses.values()[0]));
        });
      }
    }
  }
}

// A vocabulary masked with -inf is legal; a target inside the mask costs infinitely much.
TEST(CrossEntropy, MinusInfinityIsProbabilityZero) {
  const std::int64_t vocab = 5000;
  std::vector<double> values(static_cast<std::size_t>(vocab), -kInfinity);
  values[4500] = 1.0;
  values[4501] = 1.0;
  on_each_target([&](Stream& stream) {
    auto both = values;
    both.insert(both.end(), values.begin(), values.end());
    const auto logits = HostTensor::of(DType::kF32, {2, vocab}, both);
    const auto targets = HostTensor::of(DType::kI32, {2}, {4500, 0});
    const HostTensor losses(DType::kF32, {2});
    const HostTensor dlogits(DType::kF32, {2, vocab});
    cross_entropy(stream,
                  {.logits = logits, .targets = targets, .vocab = vocab, .losses = losses, .dlogits = dlogits});
    EXPECT_NEAR(losses.values()[0], std::log(2.0), 1e-7);
    EXPECT_EQ(losses.values()[1], kInfinity);
    EXPECT_EQ(dlogits.values()[0], 0.0);
    EXPECT_NEAR(dlogits.values()[4501], 0.5, 1e-7);
  });
}

TEST(CrossEntropy, SameBitsOnAnyThreads) {
  const std::int64_t vocab = 5003;
  const auto logits = HostTensor::random(DType::kF32, {60, vocab}, "logits", 3.0);
  const auto targets = some_targets(60, vocab);
  const HostTensor losses(DType::kF32, {60});
  for (const DType dtype : kFloatTypes) {
    expect_same_on_any_threads([&](Stream& stream) {
      HostTensor dlogits(dtype, {60, vocab});
      cross_entropy(
          stream, {.logits = logits, .targets = targets, .vocab = vocab, .losses = losses, .dlogits = dlogits});
      return dlogits;
    });
    expect_same_on_any_threads([&](Stream& stream) {
      HostTensor out(DType::kF32, {60});
      cross_entropy(stream, {.logits = logits, .targets = targets, .vocab = vocab, .losses = out});
      return out;
    });
  }
}

TEST(CrossEntropy, RefusesTargetsBeyondTheVocabularyAndTakesNoRows) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor logits(DType::kF32, {1, 8});
  const HostTensor losses(DType::kF32, {1});
  const auto run = [&](std::int32_t target) {
    const auto targets = HostTensor::of(DType::kI32, {1}, {static_cast<double>(target)});
    cross_entropy(stream, {.logits = logits, .targets = targets, .vocab = 6, .losses = losses});
  };
  EXPECT_NO_THROW(run(5));
  EXPECT_THROW(run(6), std::logic_error);
  EXPECT_THROW(run(-2), std::logic_error);
  const HostTensor none(DType::kF32, {0, 8});
  cross_entropy(stream, {.logits = none,
                         .targets = HostTensor(DType::kI32, {0}),
                         .vocab = 8,
                         .losses = HostTensor(DType::kF32, {0}),
                         .dlogits = none});
}

}  // namespace
}  // namespace meshtrain::ops
