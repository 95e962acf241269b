#include "ops/sharded_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "ops/cross_entropy.h"
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
using testing::StridedMatrix;
using testing::values_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 0.125;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Every third row is masked.
std::vector<double> some_targets(std::int64_t rows, std::int64_t vocab) {
  const RandomStream random(3, "targets");
  std::vector<double> ids;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto id = random.bits(static_cast<std::uint64_t>(r)) % static_cast<std::uint64_t>(vocab);
    ids.push_back(r % 3 == 1 ? kIgnoredTarget : static_cast<double>(id));
  }
  return ids;
}

// Rows of logits, row-major, padding included, and how they are cut.
struct Problem {
  std::int64_t vocab = 0;
  std::int64_t width = 0;  // of a shard
  std::int64_t shards = 1;
  std::vector<double> logits = {};
  std::vector<double> targets = {};
  float scale = static_cast<float>(kScale);

  std::int64_t columns() const { return width * shards; }
  std::int64_t rows() const { return static_cast<std::int64_t>(targets.size()); }
};

// The fewest columns a shard that hold the vocabulary.
std::int64_t width_for(std::int64_t vocab, std::int64_t shards) {
  return (vocab + shards - 1) / shards;
}

// What lies in the padding must not matter: it is 1e6 or NaN.
Problem random_problem(std::int64_t rows, std::int64_t vocab, std::int64_t width, std::int64_t shards) {
  Problem p{.vocab = vocab, .width = width, .shards = shards, .targets = some_targets(rows, vocab)};
  p.logits = HostTensor::random(DType::kF32, {rows, p.columns()}, "logits", 4.0).values();
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    if (static_cast<std::int64_t>(i) % p.columns() >= vocab) p.logits[i] = i % 2 == 0 ? 1e6 : kNan;
  }
  return p;
}

// One row whose first columns are `values`, padding 1e6.
Problem one_row(const std::vector<double>& values, std::int64_t target, std::int64_t shards) {
  Problem p{.vocab = static_cast<std::int64_t>(values.size()), .shards = shards, .logits = values};
  p.width = width_for(p.vocab, shards);
  p.logits.resize(static_cast<std::size_t>(p.columns()), 1e6);
  p.targets = {static_cast<double>(target)};
  return p;
}

struct Results {
  std::vector<double> losses;
  std::vector<double> dlogits;  // [rows, columns]
};

Results reference_of(const Problem& p) {
  const auto result = reference::cross_entropy(p.logits, {p.targets.begin(), p.targets.end()},
                                               static_cast<std::size_t>(p.columns()),
                                               static_cast<std::size_t>(p.vocab), static_cast<double>(p.scale));
  return {result.losses, result.dlogits};
}

Results dense(Stream& stream, const Problem& p, DType dtype) {
  const HostTensor losses(DType::kF32, {p.rows()});
  const HostTensor dlogits(dtype, {p.rows(), p.columns()});
  cross_entropy(stream, {.logits = HostTensor::of(DType::kF32, {p.rows(), p.columns()}, p.logits),
                         .targets = HostTensor::of(DType::kI32, {p.rows()}, p.targets),
                         .vocab = p.vocab,
                         .losses = losses,
                         .dlogits = dlogits,
                         .scale = p.scale});
  return {losses.values(), dlogits.values()};
}

// The shards of a problem, side by side as ranks hold them: rows strided, at odd addresses.
class Shards {
 public:
  Shards(Stream& stream, const Problem& p)
      : stream_(stream),
        problem_(p),
        targets_(HostTensor::of(DType::kI32, {p.rows()}, p.targets)),
        all_stats_(DType::kF64, {p.shards, p.rows(), 3}) {
    const HostTensor whole = HostTensor::of(DType::kF32, {p.rows(), p.columns()}, p.logits);
    for (std::int64_t s = 0; s < p.shards; ++s) {
      logits_.push_back(std::make_unique<StridedMatrix>(DType::kF32, p.rows(), p.width, "logits"));
      testing::set_values(*logits_.back(), values_of(whole.tensor().slice(1, s * p.width, p.width)));
      cross_entropy_stats(stream, shard(s), all_stats_.tensor().slice(0, s, 1).view({p.rows(), 3}));
    }
  }

  CrossEntropyShard shard(std::int64_t s) const {
    return {.logits = *logits_[static_cast<std::size_t>(s)],
            .targets = targets_,
            .first = s * problem_.width,
            .vocab = problem_.vocab};
  }
  const HostTensor& all_stats() const { return all_stats_; }

  // Losses, which every shard must agree on, with and without gradients, and all gradients.
  Results results(DType dtype) const {
    const Problem& p = problem_;
    const HostTensor gradients(dtype, {p.rows(), p.columns()});
    const HostTensor losses(DType::kF32, {p.rows()});
    cross_entropy_from_stats(stream_, shard(0), all_stats_, losses, {}, p.scale);
    for (std::int64_t s = 0; s < p.shards; ++s) {
      const auto losses_here = HostTensor::random(DType::kF32, {p.rows()}, "losses");
      const StridedMatrix dlogits(dtype, p.rows(), p.width, "dlogits");
      cross_entropy_from_stats(stream_, shard(s), all_stats_, losses_here, dlogits, p.scale);
      EXPECT_TRUE(losses_here.bytes() == losses.bytes());
      dlogits.expect_margins_untouched();
      testing::set_values(gradients.tensor().slice(1, s * p.width, p.width), dlogits.values());
    }
    return {losses.values(), gradients.values()};
  }

 private:
  Stream& stream_;
  const Problem& problem_;
  HostTensor targets_;
  HostTensor all_stats_;
  std::vector<std::unique_ptr<StridedMatrix>> logits_;
};

Results sharded(Stream& stream, const Problem& p, DType dtype) {
  return Shards(stream, p).results(dtype);
}

struct Sizes {
  std::int64_t rows;
  std::int64_t vocab;
  std::int64_t shards;
  std::int64_t width;
};

class ShardedCrossEntropyTest : public ::testing::TestWithParam<std::tuple<DType, Sizes>> {
 protected:
  DType dtype = std::get<0>(GetParam());
  Sizes sizes = std::get<1>(GetParam());
  Problem problem = random_problem(sizes.rows, sizes.vocab, sizes.width, sizes.shards);
};

TEST_P(ShardedCrossEntropyTest, EqualsReferenceAndDense) {
  const Results expected = reference_of(problem);
  on_each_target([&](Stream& stream) {
    const Results actual = sharded(stream, problem, dtype);
    expect_close(actual.losses, expected.losses, 1e-6, 1e-6);
    const auto gradients = HostTensor::of(dtype, {sizes.rows, problem.columns()}, actual.dlogits);
    // The gradient of a sure target has the absolute error of its loss.
    expect_rounded(gradients, expected.dlogits, 32, kScale * 2e-7);

    const Results of_dense = dense(stream, problem, DType::kF32);
    expect_close(actual.losses, of_dense.losses, 2e-7, 2e-7);
    expect_rounded(gradients, of_dense.dlogits, 8, kScale * 2e-7);
  });
}

TEST_P(ShardedCrossEntropyTest, OneShardHasTheBitsOfDense) {
  problem.width = problem.columns();
  problem.shards = 1;
  on_each_target([&](Stream& stream) {
    const Results actual = sharded(stream, problem, dtype);
    const Results of_dense = dense(stream, problem, dtype);
    EXPECT_EQ(actual.losses, of_dense.losses);
    EXPECT_EQ(actual.dlogits, of_dense.dlogits);
  });
}

TEST_P(ShardedCrossEntropyTest, StatsAreThoseOfTheShardsColumns) {
  on_each_target([&](Stream& stream) {
    const auto stats = Shards(stream, problem).all_stats().values();
    const double* at = stats.data();
    for (std::int64_t s = 0; s < sizes.shards; ++s) {
      for (std::int64_t r = 0; r < sizes.rows; ++r, at += 3) {
        const double target = problem.targets[static_cast<std::size_t>(r)];
        double high = -kInfinity;
        double logit = 0.0;
        const std::int64_t end = std::min((s + 1) * sizes.width, sizes.vocab);
        const auto value = [&](std::int64_t c) {
          return problem.logits[static_cast<std::size_t>(r * problem.columns() + c)];
        };
        for (std::int64_t c = s * sizes.width; c < end && target != kIgnoredTarget; ++c) {
          high = std::max(high, value(c));
          if (static_cast<double>(c) == target) logit = value(c);
        }
        double sum = 0.0;
        for (std::int64_t c = s * sizes.width; c < end && high > -kInfinity; ++c) {
          sum += std::exp(value(c) - high);
        }
        EXPECT_EQ(at[0], high);
        EXPECT_NEAR(at[1], sum, 4e-6 * sum);
        EXPECT_EQ(at[2], logit);
      }
    }
  });
}

// Narrower rows then start where the fp32 rows do.
TEST_P(ShardedCrossEntropyTest, GradientInTheLogitsPlaceHasTheSameBits) {
  on_each_target([&](Stream& stream) {
    const Shards shards(stream, problem);
    for (std::int64_t s = 0; s < sizes.shards; ++s) {
      CrossEntropyShard shard = shards.shard(s);
      const HostTensor losses(DType::kF32, {sizes.rows});
      const HostTensor apart(dtype, {sizes.rows, sizes.width});
      cross_entropy_from_stats(stream, shard, shards.all_stats(), losses, apart, problem.scale);

      const auto place = HostTensor::of(DType::kF32, {sizes.rows, sizes.width}, values_of(shard.logits));
      shard.logits = place;
      const Tensor within(place.tensor().raw(), dtype, {sizes.rows, sizes.width},
                          {sizes.width * 4 / size_of(dtype), 1});
      cross_entropy_from_stats(stream, shard, shards.all_stats(), losses, within, problem.scale);
      EXPECT_EQ(values_of(within), apart.values());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ShardedCrossEntropyTest,
    ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                       ::testing::Values(Sizes{1, 1, 1, 1}, Sizes{7, 5, 1, 8}, Sizes{3, 4097, 1, 4097},
                                         // Nothing but padding in the second shard, in the last two.
                                         Sizes{7, 1, 2, 3}, Sizes{7, 5, 5, 2}, Sizes{129, 33, 2, 17},
                                         Sizes{129, 100, 3, 34}, Sizes{3, 2048, 3, 704},
                                         Sizes{3, 6001, 2, 3008}, Sizes{4, 50257, 5, 10112})));

// Uniform logits, padded as Megatron pads: the loss is ln V, each gradient 1/V, however many shards.
TEST(ShardedCrossEntropy, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  const std::int64_t vocab = 50257;
  for (const std::int64_t shards : {1, 2, 3, 5, 8}) {
    Problem p{
        .vocab = vocab, .width = width_for(50432, shards), .shards = shards, .targets = {50256}, .scale = 1};
    p.logits.assign(static_cast<std::size_t>(p.columns()), 0.0);
    on_each_target([&](Stream& stream) {
      const Results actual = sharded(stream, p, DType::kF32);
      EXPECT_NEAR(actual.losses[0], 10.824905, 1e-6);
      EXPECT_NEAR(actual.dlogits[0], 1.0 / 50257.0, 1e-10);
      EXPECT_NEAR(actual.dlogits[50256], 1.0 / 50257.0 - 1.0, 1e-7);
      EXPECT_EQ(actual.dlogits[50257], 0.0);
    });
  }
}

TEST(ShardedCrossEntropy, HugeLogits) {
  for (const double level : {1e30, -1000.0, -3e38}) {
    // The last of the five shards is nothing but padding.
    const Problem p = one_row(std::vector<double>(6, level), 5, 5);
    on_each_target([&](Stream& stream) {
      const Results actual = sharded(stream, p, DType::kF32);
      EXPECT_NEAR(actual.losses[0], std::log(6.0), 1e-6);
      EXPECT_NEAR(actual.dlogits[0], kScale / 6.0, 1e-8);
      EXPECT_NEAR(actual.dlogits[5], kScale * (1.0 / 6.0 - 1.0), 1e-7);
    });
  }
  // In every shard another level, the highest in the first, in the middle and in the last.
  for (const auto& levels : {std::vector{3e38, 0.0, -3e38}, {-3e38, 3e38, 0.0}, {0.0, -3e38, 3e38}}) {
    for (const std::int64_t target : {0, 1, 2}) {
      on_each_target([&](Stream& stream) {
        const Results actual = sharded(stream, one_row(levels, target, 3), DType::kF32);
        const Results of_dense = dense(stream, one_row(levels, target, 1), DType::kF32);
        EXPECT_EQ(actual.losses, of_dense.losses);
        EXPECT_EQ(actual.dlogits, of_dense.dlogits);
        // Infinite in fp32 where one level is 6e38 below the other.
        const double loss = 3e38 - levels[static_cast<std::size_t>(target)];
        EXPECT_FLOAT_EQ(static_cast<float>(actual.losses[0]), static_cast<float>(loss));
      });
    }
  }
}

// A sure prediction: the loss and the target's gradient are small differences of numbers near 1.
TEST(ShardedCrossEntropy, SurePredictions) {
  on_each_target([&](Stream& stream) {
    for (const double lead : {5.0, 10.0, 40.0, 200.0}) {
      Problem problem = one_row({lead, 0.0, -kInfinity}, 0, 3);
      problem.scale = 1;
      const Results actual = sharded(stream, problem, DType::kF32);
      const double p = std::exp(-lead);
      EXPECT_NEAR(actual.losses[0], std::log1p(p), 0x1p-24);
      EXPECT_FALSE(std::signbit(actual.losses[0]));
      EXPECT_NEAR(actual.dlogits[0], -p / (1.0 + p), 0x1p-24);
      EXPECT_NEAR(actual.dlogits[1], p / (1.0 + p), 1e-6 * p + 1e-44);
      EXPECT_EQ(actual.dlogits[2], 0.0);
    }
  });
}

TEST(ShardedCrossEntropy, WhatIsNotFiniteReachesTheLossOfEveryShard) {
  for (const std::int64_t vocab : {5, 50, 5000}) {
    for (const std::int64_t place : {std::int64_t{0}, std::int64_t{1}, vocab - 1}) {
      for (const double bad : {kNan, kInfinity}) {
        for (const double others : {0.0, -kInfinity}) {
          std::vector<double> values(static_cast<std::size_t>(vocab), others);
          values[static_cast<std::size_t>(place)] = bad;
          on_each_target([&](Stream& stream) {
            for (const std::int64_t shards : {1, 2, 3, 5}) {
              EXPECT_FALSE(std::isfinite(sharded(stream, one_row(values, 0, shards), DType::kF32).losses[0]));
            }
          });
        }
      }
    }
  }
}

// A row without a target costs nothing and moves nothing, whatever its logits are.
TEST(ShardedCrossEntropy, IgnoredRowsAreZeroWhateverTheyHold) {
  for (const double value : {0.0, kNan, kInfinity, -kInfinity}) {
    const Problem p = one_row(std::vector<double>(40, value), kIgnoredTarget, 3);
    for (const DType dtype : kFloatTypes) {
      on_each_target([&](Stream& stream) {
        const Results actual = sharded(stream, p, dtype);
        EXPECT_EQ(actual.losses[0], 0.0);
        EXPECT_EQ(actual.dlogits, std::vector<double>(actual.dlogits.size(), 0.0));
      });
    }
  }
}

// A vocabulary masked with -inf is legal, whole shards included; a target inside the mask costs infinitely
// much.
TEST(ShardedCrossEntropy, MinusInfinityIsProbabilityZero) {
  for (const double level : {1.0, -1000.0}) {
    std::vector<double> values(5000, -kInfinity);
    values[4500] = level;
    values[4501] = level;
    on_each_target([&](Stream& stream) {
      const Results actual = sharded(stream, one_row(values, 4500, 3), DType::kF32);
      EXPECT_NEAR(actual.losses[0], std::log(2.0), 1e-7);
      EXPECT_EQ(actual.dlogits[0], 0.0);
      EXPECT_NEAR(actual.dlogits[4501], kScale * 0.5, 1e-8);
      EXPECT_EQ(sharded(stream, one_row(values, 0, 3), DType::kF32).losses[0], kInfinity);
    });
  }
}

TEST(ShardedCrossEntropy, SameBitsOnAnyThreads) {
  const Problem p = random_problem(60, 5003, 2504, 2);
  for (const DType dtype : kFloatTypes) {
    expect_same_on_any_threads([&](Stream& stream) {
      const Results actual = sharded(stream, p, dtype);
      auto all = actual.losses;
      all.insert(all.end(), actual.dlogits.begin(), actual.dlogits.end());
      return HostTensor::of(DType::kF64, {static_cast<std::int64_t>(all.size())}, all);
    });
  }
  expect_same_on_any_threads([&](Stream& stream) { return Shards(stream, p).all_stats(); });
}

TEST(ShardedCrossEntropy, CountsWhatItTouchesAndComputesNothingOnTheSimulatedDevice) {
  const auto sim = make_sim_device();
  const HostTensor logits(DType::kF32, {4, 10});
  const HostTensor dlogits(DType::kBF16, {4, 10});
  const auto losses = HostTensor::random(DType::kF32, {4}, "losses");
  const auto before = losses.values();
  const HostTensor all_stats(DType::kF64, {2, 4, 3});
  const CrossEntropyShard shard{
      .logits = logits, .targets = HostTensor(DType::kI32, {4}), .first = 10, .vocab = 15};
  const auto cost = [&](const auto& body) {
    Stream stream(*sim, 1);
    body(stream);
    return stream.total();
  };
  EXPECT_EQ(cost([&](Stream& stream) {
              cross_entropy_stats(stream, shard, all_stats.tensor().slice(0, 1, 1).view({4, 3}));
            }),
            (OpCost{.flops = 0, .bytes = 160 + 16 + 96}));
  EXPECT_EQ(
      cost([&](Stream& stream) { cross_entropy_from_stats(stream, shard, all_stats, losses, dlogits, 1.0F); }),
      (OpCost{.flops = 0, .bytes = 160 + 16 + 192 + 16 + 80}));
  EXPECT_EQ(cost([&](Stream& stream) { cross_entropy_from_stats(stream, shard, all_stats, losses, {}, 1.0F); }),
            (OpCost{.flops = 0, .bytes = 16 + 192 + 16}));
  EXPECT_EQ(losses.values(), before);
}

TEST(ShardedCrossEntropy, RefusesBrokenContractsAndTakesNoRows) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor logits(DType::kF32, {1, 8});
  const HostTensor stats(DType::kF64, {1, 3});
  const HostTensor all(DType::kF64, {2, 1, 3});
  const HostTensor losses(DType::kF32, {1});
  const auto shard = [&](const HostTensor& target, std::int64_t first = 8) {
    return CrossEntropyShard{.logits = logits, .targets = target, .first = first, .vocab = 13};
  };
  const auto id = [](int target) { return HostTensor::of(DType::kI32, {1}, {static_cast<double>(target)}); };
  for (const int target : {0, 12, kIgnoredTarget}) {
    const auto targets = id(target);
    EXPECT_NO_THROW(cross_entropy_stats(stream, shard(targets), stats));
    EXPECT_NO_THROW(cross_entropy_from_stats(stream, shard(targets), all, losses, {}, 1.0F));
  }
  for (const int target : {13, -2}) {
    const auto targets = id(target);
    EXPECT_THROW(cross_entropy_stats(stream, shard(targets), stats), std::logic_error);
    EXPECT_THROW(cross_entropy_from_stats(stream, shard(targets), all, losses, {}, 1.0F), std::logic_error);
  }
  const auto good = id(0);
  EXPECT_THROW(cross_entropy_stats(stream, shard(good, -8), stats), std::logic_error);
  EXPECT_THROW(cross_entropy_stats(stream, shard(good), HostTensor(DType::kF32, {1, 3})), std::logic_error);
  EXPECT_THROW(cross_entropy_stats(stream, shard(good), HostTensor(DType::kF64, {1, 2})), std::logic_error);
  const HostTensor two_rows(DType::kF32, {2, 8});
  const HostTensor two_targets(DType::kI32, {2});
  const HostTensor wide(DType::kF64, {2, 4});
  EXPECT_THROW(cross_entropy_stats(stream, {.logits = two_rows, .targets = two_targets, .first = 0, .vocab = 8},
                                   wide.tensor().slice(1, 0, 3)),
               std::logic_error);
  const auto from_stats = [&](const Tensor& stats_of_all, const Tensor& to, const Tensor& dlogits) {
    cross_entropy_from_stats(stream, shard(good), stats_of_all, to, dlogits, 1.0F);
  };
  EXPECT_NO_THROW(from_stats(all, losses, logits));
  EXPECT_THROW(from_stats(stats, losses, {}), std::logic_error);
  EXPECT_THROW(from_stats(HostTensor(DType::kF64, {0, 1, 3}), losses, {}), std::logic_error);
  EXPECT_THROW(from_stats(all, HostTensor(DType::kF32, {2}), {}), std::logic_error);
  EXPECT_THROW(from_stats(all, losses, HostTensor(DType::kF32, {1, 7})), std::logic_error);
  EXPECT_THROW(from_stats(all, losses, HostTensor(DType::kI32, {1, 8})), std::logic_error);

  const HostTensor none(DType::kF32, {0, 8});
  const CrossEntropyShard empty{
      .logits = none, .targets = HostTensor(DType::kI32, {0}), .first = 0, .vocab = 8};
  cross_entropy_stats(stream, empty, HostTensor(DType::kF64, {0, 3}));
  cross_entropy_from_stats(stream, empty, HostTensor(DType::kF64, {2, 0, 3}), HostTensor(DType::kF32, {0}),
                           none, 1.0F);
}

}  // namespace
}  // namespace meshtrain::ops
