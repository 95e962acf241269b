// Sums over the copies of parameters, as tensor-parallel ranks make them, element by element.
#include "gradsync/copy_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "base/philox.h"
#include "comm/ring_bytes.h"
#include "comm_ranks.h"

namespace meshtrain::gradsync {
namespace {

constexpr int kRanks = 4;

struct Declared {
  const char* name;
  std::int64_t elements;
  int copies;  // ranks that have one
  bool partial;
};
// "apart": copies with others between them. "together": one range, whatever padding lies between. "none": what
// nobody shares, or is complete everywhere.
const std::vector<std::pair<std::string, std::vector<Declared>>> kUnits = {
    {"apart",
     {{"a", 7, 4, true}, {"b", 40, 1, false}, {"c", 33, 2, true}, {"d", 5, 4, true}, {"e", 9, 2, true}}},
    {"together", {{"f", 11, 4, true}, {"g", 3, 4, true}}},
    {"none", {{"h", 20, 1, false}, {"i", 21, 4, false}}}};

float gradient(const std::string& name, int rank, std::int64_t i) {
  const RandomStream random(static_cast<std::uint64_t>(rank), name);
  return static_cast<float>(random.normal(static_cast<std::uint64_t>(i)) *
                            std::pow(10.0, static_cast<double>(i % 7) - 3.0));
}

float expected(const Declared& param, int rank, std::int64_t i) {
  const int first = rank / param.copies * param.copies;
  const auto of = [&](int copy) { return gradient(param.name, first + copy, i); };
  if (!param.partial) return gradient(param.name, rank, i);
  return param.copies == 2 ? of(0) + of(1) : (of(0) + of(1)) + (of(2) + of(3));
}

void declare(ParamStore& store, int rank) {
  for (const auto& [unit, params] : kUnits) {
    store.begin_unit(unit);
    for (const Declared& param : params) {
      store.declare(
          {.name = param.name,
           .shape = {param.elements},
           .copies = {.ranks = param.copies, .first = rank % param.copies == 0, .partial = param.partial}});
    }
  }
}

std::vector<std::string> check_rank(World& world) {
  std::vector<std::string> failures;
  const std::unique_ptr<Communicator> all = world.everyone("copies");
  const int half = world.rank() / 2 * 2;
  const std::unique_ptr<Communicator> pair = world.group("pair", {half, half + 1});
  const std::unique_ptr<Device> device = world.make_device();
  Stream stream(*device, 1);
  ParamStore store;
  declare(store, world.rank());
  store.allocate(*device, {});
  const CopySum copies(*device, store, {all.get(), pair.get()});
  // 33 + 9 elements that lie apart are the longest message; parameters start at multiples of 32 elements.
  if (device->memory().peak()[MemoryCategory::kCommunication] < (33 + 9) * 4)
    failures.emplace_back("no memory");

  CommStats before;
  for (int unit = 0; unit < static_cast<int>(kUnits.size()); ++unit) {
    const auto& [name, params] = kUnits[static_cast<std::size_t>(unit)];
    for (const Param& param : store.params()) {
      if (param.unit != unit) continue;
      for (std::int64_t i = 0; i < param.numel(); ++i) {
        store.gradient(param).data<float>()[i] = gradient(param.decl.name, world.rank(), i);
      }
    }
    copies.add(stream, unit, store.unit_gradients(unit));
    std::size_t at = 0;
    for (const Param& param : store.params()) {
      if (param.unit != unit) continue;
      const Declared& declared = params[at++];
      for (std::int64_t i = 0; i < param.numel(); ++i) {
        if (store.gradient(param).data<float>()[i] == expected(declared, world.rank(), i)) continue;
        failures.push_back(fmt::format("{} {}", param.decl.name, i));
        break;
      }
    }
    const CommStats sent = all->stats() + pair->stats();
    std::int64_t bytes = 0;
    std::int64_t calls = 0;
    if (name == "apart") {
      bytes = ring_all_reduce_bytes((7 + 5) * 4, 4) + ring_all_reduce_bytes((33 + 9) * 4, 2);
      calls = 2;
    } else if (name == "together") {  // with the padding before the second
      bytes = ring_all_reduce_bytes((32 + 3) * 4, 4);
      calls = 1;
    }
    const auto tensor = static_cast<std::size_t>(Traffic::kTensor);
    if (sent.sent[tensor] - before.sent[tensor] != bytes) failures.push_back("bytes of " + name);
    if (sent.calls[tensor] - before.calls[tensor] != calls) failures.push_back("messages of " + name);
    before = sent;
  }
  return failures;
}

TEST(CopySum, AddsPartsOfEveryGroupAndNothingElse) {
  const auto failures = testing::run_threads(kRanks, {}, check_rank);
  for (const auto& of_rank : failures) EXPECT_TRUE(of_rank.empty()) << of_rank.front();
}

}  // namespace
}  // namespace meshtrain::gradsync
