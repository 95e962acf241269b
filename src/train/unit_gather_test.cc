#include "train/unit_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "comm_ranks.h"

namespace meshtrain {
namespace {

constexpr int kLayers = 4;

// Part `part` of `parts` of a parameter cut along `dim`, `copies` ranks holding the same.
ParamDecl cut(std::string name, const Shape& whole, int dim, int parts, int part,
              const ParamCopies& copies = {}) {
  Shape shape = whole;
  shape[dim] = (whole[dim] + parts - 1) / parts;
  const std::int64_t first = shape[dim] * part;
  return {.name = std::move(name),
          .shape = shape,
          .slice = {.whole = whole, .dim = dim, .first = first},
          .copies = copies};
}

// A model of a table with 7 ids, four layers and a head that shares the table, on one of `pp` stages.
void declare(ParamStore& store, int tp, int rank, int pp, int stage) {
  const ParamCopies everywhere = {.ranks = tp, .first = rank == 0};
  const auto embed = [&](bool copy) {
    store.begin_unit("embed", copy);
    store.declare(cut("embed.tokens", {7, 4}, 0, tp, rank));
    store.declare({.name = "embed.positions", .shape = {5, 4}, .copies = everywhere});
  };
  if (stage == 0) embed(false);
  for (int layer = kLayers * stage / pp; layer < kLayers * (stage + 1) / pp; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    // Two heads of keys and values: where there are more ranks, several hold the same.
    const int heads = std::min(tp, 2);
    const int share = tp / heads;
    const ParamCopies copies = {.ranks = share, .first = rank % share == 0};
    store.begin_unit(name);
    store.declare({.name = name + ".norm", .shape = {9}, .copies = everywhere});
    store.declare_fused({cut(name + ".q", {8, 4}, 0, tp, rank),
                         cut(name + ".k", {4, 4}, 0, heads, rank / share, copies),
                         cut(name + ".v", {4, 4}, 0, heads, rank / share, copies)});
    store.declare(cut(name + ".down", {4, 16}, 1, tp, rank));
  }
  if (stage != pp - 1) return;
  store.begin_unit("head");
  store.declare({.name = "norm", .shape = {4}, .copies = everywhere});
  if (pp > 1) embed(true);
}

struct Grid {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  bool sharded = false;
  int ranks() const { return dp * tp * pp; }
};

MeshLayout layout_of(const Grid& grid) {
  MeshConfig mesh;
  mesh.dp = grid.dp;
  mesh.tp = grid.tp;
  mesh.pp = grid.pp;
  return {
      mesh, [](ParamStore& store, Device&, int, int) { declare(store, 1, 0, 1, 0); },
      [=](ParamStore& store, Device&, int rank, int stage) { declare(store, grid.tp, rank, grid.pp, stage); }};
}

float value(const std::string& name, std::int64_t element, std::size_t index) {
  const auto hash = std::hash<std::string>()(name) % 1000;
  return static_cast<float>(static_cast<double>(hash) + 1000.0 * static_cast<double>(element) +
                            0.5 * static_cast<double>(index));
}

// Fetches two tensors of every unit, from ranks whose elements have the values above but for `odd`: element 2
// of layer 3's k on the
// last tensor-parallel rank. Returns what rank 0 complains about.
std::vector<std::string> fetch_all(const Grid& grid, World& world, Copies copies, bool odd) {
  const MeshLayout layout = layout_of(grid);
  const auto everyone = world.everyone("control");
  const auto device = make_cpu_device();
  const int tensor_rank = world.rank() % grid.tp;
  const int data_rank = world.rank() / grid.tp % grid.dp;
  const int stage = world.rank() / grid.tp / grid.dp;
  ParamStore store(grid.dp);
  declare(store, grid.tp, tensor_rank, grid.pp, stage);
  store.allocate(*device, {.sharding = {.parts = grid.sharded ? grid.dp : 1,
                                        .part = grid.sharded ? data_rank : 0,
                                        .gradients = grid.sharded}});
  const auto owned = [&](int unit, std::size_t index) {
    return index == 0 ? store.owned_masters(unit) : store.owned_gradients(unit);
  };
  for (int unit = 0; unit < static_cast<int>(store.units().size()); ++unit) {
    for (const OwnedSlice& slice : store.owned_slices(unit)) {
      const ParamDecl& decl = slice.param->decl;
      for_each_run(decl.shape, decl.slice, slice.first, slice.count, [&](const SliceRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          const std::int64_t local = run.local - slice.first + i;
          const bool wrong =
              odd && decl.name == "layers.3.k" && run.local + i == 2 && tensor_rank == grid.tp - 1;
          slice.master.data<float>()[local] = value(decl.name, run.global + i, 0);
          slice.gradient.data<float>()[local] = wrong ? -5.0F : value(decl.name, run.global + i, 1);
        }
      });
    }
  }
  UnitGather gather(layout, store, *everyone, owned, copies);
  std::vector<std::string> wrong;
  for (int unit = 0; unit < static_cast<int>(layout.model().units().size()); ++unit) {
    for (const std::size_t index : {0, 1}) {
      std::vector<float> whole;
      gather.fetch(unit, index, whole);
      if (world.rank() != 0) continue;
      for (const Param& param : layout.model().params()) {
        if (param.unit != unit) continue;
        const std::int64_t begin = param.offset - layout.model().units()[static_cast<std::size_t>(unit)].begin;
        for (std::int64_t i = 0; i < param.numel(); ++i) {
          const float expected = value(param.decl.name, i, index);
          if (whole[static_cast<std::size_t>(begin + i)] != expected) wrong.push_back(param.decl.name);
        }
      }
    }
  }
  return wrong;
}

std::vector<std::string> failures_of(const Grid& grid, Copies copies, bool odd) {
  return testing::run_threads(grid.ranks(), {},
                              [&](World& world) { return fetch_all(grid, world, copies, odd); })
      .front();
}

TEST(UnitGather, RankZeroHasTheWholeModelOfAnyMesh) {
  for (const int dp : {1, 2, 3}) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 3}) {
        for (const bool sharded : {false, true}) {
          const Grid grid = {.dp = dp, .tp = tp, .pp = pp, .sharded = sharded};
          EXPECT_EQ(failures_of(grid, Copies::kCompare, false), std::vector<std::string>{})
              << dp << " x " << tp << " x " << pp << (sharded ? " sharded" : "");
        }
      }
    }
  }
}

TEST(UnitGather, CopiesThatDifferAreNamed) {
  for (const bool sharded : {false, true}) {
    const Grid grid = {.dp = sharded ? 2 : 1, .tp = 4, .pp = 2, .sharded = sharded};
    const std::vector<std::string> failures = failures_of(grid, Copies::kCompare, true);
    ASSERT_EQ(failures.size(), 1);
    // Ranks 2 and 3 hold head 1: elements 8 and on.
    EXPECT_NE(failures[0].find("copies of layers.3.k differ between tensor-parallel ranks 2 and 3"),
              std::string::npos)
        << failures[0];
    EXPECT_NE(failures[0].find("element 10: "), std::string::npos) << failures[0];
    EXPECT_TRUE(failures_of(grid, Copies::kFirst, true).empty());
  }
}

TEST(MeshLayout, UnitsLieOnTheStageThatTrainsThem) {
  const MeshLayout layout = layout_of({.dp = 2, .tp = 2, .pp = 2});
  std::vector<std::pair<int, int>> places;
  for (int unit = 0; unit < kLayers + 2; ++unit) {
    places.emplace_back(layout.place_of(unit).stage, layout.place_of(unit).unit);
  }
  EXPECT_EQ(places, (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}));
  const NormPlace place = norm_place_of(layout, layout.held(1, 1), 1, 0);
  EXPECT_EQ(place.unit, (std::vector<int>{3, 4, 5, -1}));  // the copy of the table counts elsewhere
  EXPECT_TRUE(place.counts);
  EXPECT_FALSE(norm_place_of(layout, layout.held(1, 1), 1, 1).counts);
  EXPECT_EQ(layout.world_rank(1, 1, 1), 7);
}

}  // namespace
}  // namespace meshtrain
