#include "params/param_store.h"

#include <gtest/gtest.h>

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
  store.tie(table);
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
  EXPECT_EQ(plain[MemoryCategory::kWorkspace], 4 * 64);  // the tied use's 35, in cache lines
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
