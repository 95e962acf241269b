// The tree over micro-batches against its definition: neighbours are added until one value is left.
#include "gradsync/leaf_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "base/philox.h"
#include "comm_ranks.h"
#include "gradsync/gradient_norm.h"
#include "gradsync/gradsync_testing.h"
#include "ops/square_sum.h"

namespace meshtrain::gradsync {
namespace {

constexpr std::int64_t kSizes[] = {100, 33};

void declare(ParamStore& store) {
  for (const std::int64_t size : kSizes) {
    store.begin_unit("unit");
    store.declare({.name = "w" + std::to_string(size), .shape = {size}});
  }
}

// Gradient of element i in micro-batch `leaf`.
float leaf_value(std::int64_t leaf, int unit, std::int64_t i) {
  return testing::gradient_value(RandomStream(static_cast<std::uint64_t>(leaf * 2 + unit), "leaf"), i);
}

float expected_sum(std::int64_t leaves, int unit, std::int64_t i) {
  if (i >= kSizes[unit]) return 0.0F;
  std::vector<float> values;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) values.push_back(leaf_value(leaf, unit, i));
  return testing::tree_sum(values);
}

std::vector<std::string> check_rank(World& world, std::int64_t steps, bool owned_top) {
  std::vector<std::string> failures;
  const int ranks = world.size();
  const std::unique_ptr<Communicator> group = world.everyone("dp");
  const std::unique_ptr<Device> device = world.make_device();
  Stream stream(*device, 1);
  ParamStore store(ranks);
  declare(store);
  const Sharding sharding = {.parts = ranks, .part = world.rank(), .gradients = true, .weights = true};
  store.allocate(*device, {.sharding = owned_top ? sharding : Sharding{}});
  const Buffer leaves = leaf_memory(*device, trained_unit_elements(store), *group);
  LeafTree tree(
      *device, trained_unit_elements(store), *group, steps, leaves,
      owned_top ? [&](int unit) { return store.owned_gradients(unit); } : std::function<Tensor(int)>());
  for (int round = 0; round < 2; ++round) {  // as good as new after a step
    for (std::int64_t step = 0; step < steps; ++step) {
      for (int unit = 1; unit >= 0; --unit) {
        const std::int64_t elements = store.units()[static_cast<std::size_t>(unit)].elements;
        std::vector<float> gradients(static_cast<std::size_t>(elements), 0.0F);
        for (std::int64_t i = 0; i < kSizes[unit]; ++i) {
          gradients[static_cast<std::size_t>(i)] = leaf_value(step * ranks + world.rank(), unit, i);
        }
        tree.add(stream, unit, Tensor(gradients.data(), DType::kF32, {elements}), step);
      }
    }
    for (int unit = 0; unit < 2; ++unit) {
      const Tensor part = tree.finish(stream, unit);
      const std::int64_t begin = part.numel() * world.rank();
      if (owned_top && part.raw() != store.owned_gradients(unit).raw()) failures.emplace_back("not in place");
      for (std::int64_t i = 0; i < part.numel(); ++i) {
        if (part.data<float>()[i] == expected_sum(steps * ranks, unit, begin + i)) continue;
        failures.push_back(fmt::format("unit {} element {}", unit, begin + i));
      }
    }
  }
  return failures;
}

TEST(LeafTree, IsOneTreeForEverySplitOfTheBatch) {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
    for (const std::int64_t steps : {1, 2, 3, 5, 8}) {
      for (const bool owned_top : {false, true}) {
        const auto failures =
            testing::run_threads(ranks, {}, [&](World& world) { return check_rank(world, steps, owned_top); });
        for (const auto& of_rank : failures) {
          EXPECT_TRUE(of_rank.empty()) << ranks << " ranks, " << steps << " steps: " << of_rank.front();
        }
      }
    }
  }
}

// A norm of 3 on one part and 4 on another is 5, with the bits of one rank.
TEST(GradientNorm, HasTheSameBitsForAnyNumberOfParts) {
  double whole = 0.0;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    std::vector<double> sums(static_cast<std::size_t>(ranks));
    const auto failures = testing::run_threads(ranks, {}, [&](World& world) {
      const std::unique_ptr<Communicator> group = world.everyone("dp");
      const std::unique_ptr<Device> device = world.make_device();
      Stream stream(*device, 1);
      ParamStore store(ranks);
      declare(store);
      store.allocate(*device, {.sharding = {.parts = ranks, .part = world.rank(), .gradients = true}});
      for (int unit = 0; unit < 2; ++unit) {
        const Tensor own = store.owned_gradients(unit);
        for (std::int64_t i = 0; i < own.numel(); ++i) {
          const std::int64_t element = own.numel() * world.rank() + i;
          own.data<float>()[i] = element < kSizes[unit] ? leaf_value(0, unit, element) : 0.0F;
        }
      }
      const std::vector<double> units = UnitSquares(store).sums(stream, *group);
      sums[static_cast<std::size_t>(world.rank())] = units[0] + units[1];
      return std::vector<std::string>{};
    });
    for (const auto& of_rank : failures) EXPECT_TRUE(of_rank.empty()) << of_rank.front();
    if (ranks == 1) whole = sums[0];
    for (const double sum : sums) EXPECT_EQ(sum, whole) << ranks;
  }
  double plain = 0.0;
  for (int unit = 0; unit < 2; ++unit) {
    for (std::int64_t i = 0; i < kSizes[unit]; ++i) plain += std::pow(leaf_value(0, unit, i), 2);
  }
  EXPECT_NEAR(whole, plain, plain * 1e-12);
}

}  // namespace
}  // namespace meshtrain::gradsync
