#include "gradsync/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "comm/device_mesh.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

constexpr int kUnits = 3;

// Unit u of the model is a matrix [6, 10], cut by rows, and a vector that all tensor-parallel ranks hold.
void declare(ParamStore& store, int first_unit, int units, int ranks, int rank) {
  for (int unit = first_unit; unit < first_unit + units; ++unit) {
    store.begin_unit(std::to_string(unit));
    const std::int64_t rows = (6 + ranks - 1) / ranks;
    store.declare({.name = "w" + std::to_string(unit),
                   .shape = {rows, 10},
                   .slice = {.whole = {6, 10}, .dim = 0, .first = rows * rank}});
    store.declare(
        {.name = "b" + std::to_string(unit), .shape = {21}, .copies = {.ranks = ranks, .first = rank == 0}});
  }
}

// Squares need not be exact in double when they are added: 24 bits and widely apart.
float gradient(const std::string& name, std::int64_t element) {
  const auto x = static_cast<double>(element + 3 * name.back() + 7 * name.front());
  return static_cast<float>(std::sin(x) * std::pow(2.0, static_cast<double>(element % 40) - 20.0));
}

double norm_square(int dp, int tp, int pp, bool sharded, World& world, float odd_value = 0.0F) {
  const DeviceMesh mesh({{"tp", tp}, {"dp", dp}, {"pp", pp}}, world.rank(), world.size());
  const auto owners = mesh.group(world, {"dp"});
  const auto everyone = world.everyone("everyone");
  const auto device = make_cpu_device();
  Stream stream(*device, 1);
  const auto stage = static_cast<int>(mesh.coordinate("pp"));
  const int first_unit = kUnits * stage / pp;
  const int units = kUnits * (stage + 1) / pp - first_unit;
  ParamStore store(dp);
  declare(store, first_unit, units, tp, static_cast<int>(mesh.coordinate("tp")));
  const int part = sharded ? owners->rank() : 0;
  store.allocate(*device, {.sharding = {.parts = sharded ? dp : 1, .part = part, .gradients = sharded}});
  NormPlace place = {.tensor_ranks = tp,
                     .tensor_rank = static_cast<int>(mesh.coordinate("tp")),
                     .counts = mesh.coordinate("dp") == 0,
                     .model_units = kUnits};
  for (int unit = 0; unit < units; ++unit) {
    place.unit.push_back(first_unit + unit);
    for (const OwnedSlice& slice : store.owned_slices(unit)) {
      const ParamDecl& decl = slice.param->decl;
      for_each_run(decl.shape, decl.slice, slice.first, slice.count, [&](const SliceRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          float& value = slice.gradient.data<float>()[run.local - slice.first + i];
          value = gradient(decl.name, run.global + i);
          if (odd_value != 0.0F && decl.name == "b2" && run.global + i == 20) value = odd_value;
        }
      });
    }
  }
  return combine_unit_sums(UnitSquares(store).sums(stream, *owners), place, *everyone);
}

std::vector<double> norm_squares(int dp, int tp, int pp, bool sharded, float odd_value = 0.0F) {
  std::vector<double> results(static_cast<std::size_t>(dp * tp * pp));
  const auto failures = testing::run_threads(dp * tp * pp, {}, [&](World& world) {
    results[static_cast<std::size_t>(world.rank())] = norm_square(dp, tp, pp, sharded, world, odd_value);
    return std::vector<std::string>{};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
  return results;
}

TEST(GradientNorm, IsOneOnAllRanksAndDependsOnTensorParallelismAlone) {
  long double exact = 0.0L;
  for (int unit = 0; unit < kUnits; ++unit) {
    for (int i = 0; i < 60; ++i)
      exact += std::pow(static_cast<long double>(gradient("w" + std::to_string(unit), i)), 2);
    for (int i = 0; i < 21; ++i)
      exact += std::pow(static_cast<long double>(gradient("b" + std::to_string(unit), i)), 2);
  }
  for (const int tp : {1, 2, 3}) {
    const double expected = norm_squares(1, tp, 1, false).front();
    EXPECT_NEAR(expected, static_cast<double>(exact), 1e-14 * static_cast<double>(exact)) << tp;
    for (const int dp : {1, 2, 3}) {
      for (const int pp : {1, 2, 3}) {
        for (const bool sharded : {false, true}) {
          for (const double found : norm_squares(dp, tp, pp, sharded)) {
            EXPECT_EQ(found, expected) << dp << " x " << tp << " x " << pp << (sharded ? " sharded" : "");
          }
        }
      }
    }
  }
}

TEST(GradientNorm, OfStagesWithThreeAndFourIsFive) {
  const auto failures = testing::run_threads(2, {}, [](World& world) {
    const auto everyone = world.everyone("everyone");
    const bool first = world.rank() == 0;
    // The last stage has a copy of the first one's unit too, which nobody counts.
    const std::vector<double> sums = first ? std::vector{9.0} : std::vector{16.0, 100.0};
    const NormPlace place = {.unit = first ? std::vector{0} : std::vector{1, -1}, .model_units = 2};
    std::vector<std::string> wrong;
    if (std::sqrt(combine_unit_sums(sums, place, *everyone)) != 5.0) wrong.emplace_back("not 5");
    return wrong;
  });
  for (const auto& of_rank : failures) EXPECT_TRUE(of_rank.empty()) << of_rank.front();
}

TEST(GradientNorm, WhatIsNotFiniteShowsOnAllRanks) {
  for (const double found : norm_squares(2, 2, 2, true, std::numeric_limits<float>::quiet_NaN()))
    EXPECT_TRUE(std::isnan(found));
  for (const double found : norm_squares(2, 2, 2, true, std::numeric_limits<float>::infinity()))
    EXPECT_EQ(found, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace meshtrain
