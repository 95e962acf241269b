// What the sharded cross-entropy charges and refuses; its values: sharded_cross_entropy_test.cc.
#include <gtest/gtest.h>

#include "ops/cross_entropy.h"
#include "ops/sharded_cross_entropy.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::HostTensor;

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
