#include "params/param_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>

namespace meshtrain {
namespace {

// Two units whose sizes divide by nothing.
void declare(ParamStore& store) {
  store.begin_unit("first");
  const ParamRef table = store.declare({.name = "table", .shape = {7, 5}});
  store.declare({.name = "bias", .shape = {3}, .init = Init::kOnes});
  store.begin_unit("second");
  store.declare_fused({{.name = "q", .shape = {11, 4}}, {.name = "k", .shape = {2, 4}}});
  store.declare({.name = "gain", .shape = {1}, .init = Init::kZeros});
  store.tie(table, 1);
}

std::span<const float> values(const Tensor& t) {
  return {t.data<float>(), static_cast<std::size_t>(t.numel())};
}

TEST(ParamStore, UnitsAreCutIntoEqualPartsWhateverTheirSize) {
  for (const int parts : {1, 2, 3, 4, 7, 8}) {
    const std::unique_ptr<Device> device = make_cpu_device();
    ParamStore store(parts);
    declare(store);
    store.allocate(*device, {});
    std::int64_t begin = 0;
    for (const Unit& unit : store.units()) {
      EXPECT_EQ(unit.begin, begin);
      EXPECT_EQ(unit.elements % (parts * ParamStore::kCutElements), 0) << parts;
      EXPECT_EQ(unit.begin % 32, 0);  // cache lines of two bytes an element
      begin = unit.end();
    }
    EXPECT_EQ(store.flat_elements(), begin);
    EXPECT_EQ(store.count(), 35 + 3 + 44 + 8 + 1);
    EXPECT_EQ(store.count_of_unit(0), 38);
  }
}

// Every element belongs to one part, and has the initial value that it has on one rank.
TEST(ParamStore, PartsTogetherAreTheWhole) {
  const std::unique_ptr<Device> device = make_cpu_device();
  Stream stream(*device, 1);
  ParamStore whole;
  declare(whole);
  whole.allocate(*device, {});
  whole.initialize(stream, 5);
  for (const int parts : {1, 2, 3, 5, 8}) {
    std::vector<std::int64_t> seen(whole.params().size(), 0);
    for (int part = 0; part < parts; ++part) {
      ParamStore store(parts);
      declare(store);
      store.allocate(*device, {.sharding = {.parts = parts, .part = part, .gradients = true, .weights = true}});
      store.initialize(stream, 5);
      EXPECT_EQ(store.owned_elements() * parts, store.flat_elements());
      for (int unit = 0; unit < 2; ++unit) {
        for (const OwnedSlice& slice : store.owned_slices(unit)) {
          const auto index = static_cast<std::size_t>(slice.param - store.params().data());
          EXPECT_EQ(slice.first, seen[index]) << slice.param->decl.name;  // parts come in order
          seen[index] += slice.count;
          const Tensor expected = whole.master(whole.params()[index]);
          for (std::int64_t i = 0; i < slice.count; ++i) {
            EXPECT_EQ(values(slice.master)[static_cast<std::size_t>(i)],
                      values(expected.view({expected.numel()}))[static_cast<std::size_t>(slice.first + i)]);
          }
        }
      }
    }
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], whole.params()[i].numel());
  }
}

// What tensor-parallel rank `rank` of `ranks` holds of a model with 7 ids, which do not divide.
void declare_slices(ParamStore& store, int ranks, int rank) {
  const auto cut = [&](std::string name, Shape whole, int dim, Init init = Init::kNormal) {
    Shape shape = whole;
    shape[dim] = (whole[dim] + ranks - 1) / ranks;
    const ParamSlice slice = {.whole = whole, .dim = dim, .first = shape[dim] * rank};
    return ParamDecl{.name = std::move(name), .shape = shape, .init = init, .slice = slice};
  };
  const ParamCopies everywhere = {.ranks = ranks, .first = rank == 0};
  store.begin_unit("first");
  store.declare(cut("table", {7, 5}, 0));
  store.declare({.name = "positions", .shape = {3, 5}, .copies = everywhere});
  store.begin_unit("second");
  store.declare(cut("up", {24, 5}, 0));
  store.declare(cut("bias", {24}, 0, Init::kOnes));
  store.declare(cut("down", {5, 24}, 1));
  store.declare({.name = "gain", .shape = {5}, .init = Init::kOnes, .copies = everywhere});
}

using Values = std::map<std::string, std::vector<float>>;

// Writes the masters that a store owns to their places in whole parameters. What is there must be the same.
void put_in_place(const ParamStore& store, Values& whole) {
  for (int unit = 0; unit < 2; ++unit) {
    double sum = 0.0;  // of magnitudes, so that padding must be zero
    for (const OwnedSlice& slice : store.owned_slices(unit)) {
      const ParamDecl& decl = slice.param->decl;
      std::vector<float>& to = whole[decl.name];
      to.resize(static_cast<std::size_t>(decl.whole().numel()), std::numeric_limits<float>::quiet_NaN());
      for_each_run(decl.shape, decl.slice, slice.first, slice.count, [&](const SliceRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          const float value = values(slice.master)[static_cast<std::size_t>(run.local - slice.first + i)];
          float& there = to[static_cast<std::size_t>(run.global + i)];
          EXPECT_TRUE(std::isnan(there) || there == value) << decl.name << ' ' << run.global + i;
          there = value;
          sum += std::abs(static_cast<double>(value));
        }
      });
    }
    for (const float value : values(store.owned_masters(unit))) sum -= std::abs(static_cast<double>(value));
    EXPECT_NEAR(sum, 0.0, 1e-12);
  }
}

TEST(ParamStore, SlicesTileTheWholeModel) {
  const std::unique_ptr<Device> device = make_cpu_device();
  Stream stream(*device, 2);
  Values dense;
  ParamStore whole;
  declare_slices(whole, 1, 0);
  whole.allocate(*device, {});
  whole.initialize(stream, 5);
  put_in_place(whole, dense);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int parts : {1, 2, 3}) {
      Values tiled;
      std::int64_t held = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int part = 0; part < parts; ++part) {
          ParamStore store(parts);
          declare_slices(store, ranks, rank);
          store.allocate(*device, {.sharding = {.parts = parts, .part = part, .weights = true}});
          store.initialize(stream, 5);
          put_in_place(store, tiled);
          held += part == 0 ? store.count() : 0;
        }
      }
      EXPECT_EQ(tiled, dense) << ranks << ' ' << parts;  // NaN, where nobody held a value, differs
      EXPECT_EQ(held, whole.count() + (ranks - 1) * (15 + 5)) << ranks;
    }
  }
}

TEST(ParamStore, CopiesAreCountedOnceAndSummedWhereTheyArePartial) {
  const auto declare_copies = [](ParamStore& store, bool first) {
    const ParamCopies four = {.ranks = 4, .first = first, .partial = true};
    store.begin_unit("unit");
    store.declare({.name = "own", .shape = {5}});
    store.declare({.name = "norm", .shape = {7}, .copies = four});
    store.declare({.name = "bias", .shape = {3}, .copies = four});
    store.declare_fused(
        {{.name = "k", .shape = {2, 4}, .copies = {.ranks = 2, .first = first, .partial = true}},
         {.name = "v", .shape = {2, 4}, .copies = {.ranks = 2, .first = first, .partial = true}}});
    store.declare({.name = "position", .shape = {9}, .copies = {.ranks = 4, .first = first}});
    store.declare({.name = "last", .shape = {1}, .copies = four});
    store.begin_unit("other");
    store.declare({.name = "first", .shape = {6}, .copies = four});
  };
  const std::unique_ptr<Device> device = make_cpu_device();
  ParamStore first;
  declare_copies(first, true);
  first.allocate(*device, {});
  EXPECT_TRUE(first.uncounted(0).empty());
  ParamStore second;
  declare_copies(second, false);
  second.allocate(*device, {});
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const ops::ElementRange& range : second.uncounted(0)) ranges.emplace_back(range.begin, range.end);
  using Ranges = decltype(ranges);
  EXPECT_EQ(ranges, (Ranges{{32, 39}, {64, 67}, {96, 104}, {104, 112}, {128, 137}, {160, 161}}));
  const std::vector<CopyRange> partial = {{32, 67, 4}, {96, 112, 2}, {160, 161, 4}};
  EXPECT_EQ(first.partial_copies(0), partial);
  EXPECT_EQ(second.partial_copies(0), partial);
  EXPECT_EQ(second.partial_copies(1), (std::vector<CopyRange>{{0, 6, 4}}));
}

TEST(ParamStore, MemoryIsThatOfTheParts) {
  const auto use_of = [](const Sharding& sharding, DType compute) {
    const std::unique_ptr<Device> device = make_sim_device();
    ParamStore store(4);
    declare(store);
    store.allocate(*device, {.compute = compute, .sharding = sharding});
    return std::pair(device->memory().current(), store.flat_elements());
  };
  const auto [plain, elements] = use_of({}, DType::kBF16);
  EXPECT_EQ(plain[MemoryCategory::kParameters], 2 * elements);
  EXPECT_EQ(plain[MemoryCategory::kMaster], 4 * elements);
  EXPECT_EQ(plain[MemoryCategory::kGradients], 4 * elements);
  EXPECT_EQ(plain[MemoryCategory::kWorkspace], 4 * 128);  // the tied use: laid out as its owner
  const auto [states, e1] = use_of({.parts = 4, .part = 1}, DType::kBF16);
  EXPECT_EQ(states[MemoryCategory::kParameters], 2 * elements);
  EXPECT_EQ(states[MemoryCategory::kMaster], elements);
  const auto [all, e3] = use_of({.parts = 4, .part = 3, .gradients = true, .weights = true}, DType::kF32);
  EXPECT_EQ(all[MemoryCategory::kParameters], elements);
  EXPECT_EQ(all[MemoryCategory::kGradients], elements);
  EXPECT_EQ(all[MemoryCategory::kMaster], 0);
}

TEST(ParamStore, PlacedUnitsAreWhereTheyWerePut) {
  const std::unique_ptr<Device> device = make_cpu_device();
  Stream stream(*device, 1);
  ParamStore store(2);
  store.begin_unit("only");
  const ParamRef ref = store.declare({.name = "w", .shape = {3, 5}});
  store.allocate(*device, {.sharding = {.parts = 2, .part = 0, .gradients = true, .weights = true}});
  EXPECT_THROW(ref.weight(), std::logic_error);
  const std::int64_t elements = store.units()[0].elements;
  std::vector<float> memory(static_cast<std::size_t>(elements), 7.0F);
  const Tensor flat(memory.data(), DType::kF32, {elements});
  store.place_weights(0, flat);
  EXPECT_EQ(ref.weight().raw(), memory.data());
  EXPECT_EQ(ref.weight().shape(), (Shape{3, 5}));
  store.clear_padding(stream, 0, flat);
  for (std::size_t i = 0; i < memory.size(); ++i) EXPECT_EQ(memory[i], i < 15 ? 7.0F : 0.0F) << i;
  store.place_weights(0, {});
  EXPECT_THROW(ref.weight(), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
