#include "shard/tensor/tensor_group.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "comm_ranks.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kWidth = 5;

struct Rank {
  TensorGroup tensor;
  Arena& arena;
};

// Runs `body` on every rank, with and without sequence parallelism.
void on_ranks(int ranks, const std::function<void(Rank&)>& body) {
  for (const bool sequence_parallel : {false, true}) {
    const auto failures = testing::run_threads(ranks, {}, [&](World& world) {
      const std::unique_ptr<Communicator> group = world.everyone("tp");
      const std::unique_ptr<Communicator> background = world.everyone("tp background");
      const std::unique_ptr<Device> device = world.make_device();
      CommQueue queue(*device, true);
      Arena arena(*device, MemoryCategory::kWorkspace, "work", 1 << 20);
      Rank rank{.tensor = TensorGroup(*group, *background, queue, sequence_parallel), .arena = arena};
      EXPECT_EQ(rank.tensor.part().ranks, ranks);
      EXPECT_EQ(rank.tensor.part().rank, world.rank());
      EXPECT_EQ(rank.tensor.part().sequence_parallel, sequence_parallel);
      body(rank);
      return std::vector<std::string>{};
    });
    for (const auto& of_rank : failures) {
      for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
    }
  }
}

std::span<float> values(const Tensor& t) {
  return {t.data<float>(), static_cast<std::size_t>(t.numel())};
}

// Element i of a whole [tokens, kWidth] is `factor`·i; this rank's rows of it.
Tensor fill_rows(const Rank& rank, std::int64_t tokens, float factor) {
  const SharedRows x = rank.tensor.allocate(rank.arena, DType::kF32, tokens, kWidth, true);
  std::fill_n(x.whole.data<float>(), x.whole.numel(), -1.0F);
  const std::int64_t first = rank.tensor.part().sequence_parallel ? x.own.numel() * rank.tensor.part().rank : 0;
  for (std::size_t i = 0; i < values(x.own).size(); ++i) {
    values(x.own)[i] = factor * static_cast<float>(first + static_cast<std::int64_t>(i));
  }
  return x.own;
}

void expect_counts_up(const Tensor& t, std::int64_t first, float factor) {
  for (const float value : values(t)) EXPECT_EQ(value, factor * static_cast<float>(first++));
}

TEST(TensorGroup, GatherLeadsFromOuterToInner) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Rank& rank) {
      const TensorGroup& tensor = rank.tensor;
      const std::int64_t tokens = 2 * ranks;
      const Tensor x = fill_rows(rank, tokens, 1.0F);
      EXPECT_EQ(x.dim(0), tensor.part().sequence_parallel ? 2 : tokens);
      EXPECT_EQ(tensor.outer_rows(tokens), x.dim(0));
      const Tensor whole = tensor.gather(x, rank.arena);
      EXPECT_EQ(whole.shape(), (Shape{tokens, kWidth}));
      expect_counts_up(whole, 0, 1.0F);
      EXPECT_EQ(values(tensor.own_rows(whole))[0], values(x)[0]);

      // In place, and in the background.
      const SharedRows kept = tensor.allocate(rank.arena, DType::kF32, tokens, kWidth, true);
      std::copy_n(x.data<float>(), x.numel(), kept.own.data<float>());
      EXPECT_EQ(tensor.gather(kept, rank.arena).raw(), kept.whole.raw());
      expect_counts_up(kept.whole, 0, 1.0F);
      EXPECT_EQ(tensor.begin_gather(kept, rank.arena).ticket, 0);
      EXPECT_EQ(tensor.begin_gather(kept, rank.arena).result.raw(), kept.whole.raw());
      const TensorGroup::Pending pending = tensor.begin_gather({.own = x, .whole = {}}, rank.arena);
      expect_counts_up(tensor.wait(pending), 0, 1.0F);
    });
  }
}

TEST(TensorGroup, ReduceLeadsFromPartialSumsToOuter) {
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Rank& rank) {
      const TensorGroup& tensor = rank.tensor;
      const std::int64_t tokens = 2 * ranks;
      const auto partial = [&] {
        const Tensor t = rank.arena.allocate(DType::kF32, {tokens, kWidth});
        std::iota(values(t).begin(), values(t).end(), 0.0F);
        return t;
      };
      const std::int64_t first = tensor.part().sequence_parallel ? 2 * kWidth * tensor.part().rank : 0;
      const auto sum = static_cast<float>(ranks);
      const Tensor out = rank.arena.allocate(DType::kF32, {tensor.outer_rows(tokens), kWidth});
      tensor.reduce(partial(), out);
      expect_counts_up(out, first, sum);
      const Tensor in_place = partial();
      EXPECT_EQ(tensor.reduce(in_place).raw(), tensor.own_rows(in_place).raw());
      expect_counts_up(tensor.own_rows(in_place), first, sum);
      // Two at once finish in any order of waiting.
      const TensorGroup::Pending one = tensor.begin_reduce(partial());
      const TensorGroup::Pending two = tensor.begin_reduce(partial());
      expect_counts_up(tensor.wait(two), first, sum);
      expect_counts_up(tensor.wait(one), first, sum);
    });
  }
}

TEST(TensorGroup, GathersValuesInRankOrder) {
  on_ranks(3, [](Rank& rank) {
    const Tensor own = rank.arena.allocate(DType::kF64, {2});
    own.data<double>()[0] = own.data<double>()[1] = rank.tensor.part().rank;
    const Tensor all = rank.arena.allocate(DType::kF64, {3, 2});
    rank.tensor.gather_values(own, all);
    const std::vector<double> expected = {0, 0, 1, 1, 2, 2};
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), all.data<double>()));
  });
}

TEST(TensorGroup, BytesCountAsWhatTheyAreFor) {
  const std::unique_ptr<World> world = make_sim_world(0, 2);
  const std::unique_ptr<Device> device = world->make_device();
  const std::unique_ptr<Communicator> group = world->everyone("tp");
  const std::unique_ptr<Communicator> background = world->everyone("tp background");
  CommQueue queue(*device, true);
  const TensorGroup tensor(*group, *background, queue, true);
  Arena arena = Arena::measuring("work");
  const Tensor partial = arena.allocate(DType::kF32, {6, kWidth});
  tensor.counted_as(Traffic::kEvaluation).reduce(partial);
  tensor.wait(tensor.begin_reduce(partial));
  EXPECT_EQ(group->stats().sent_for(Traffic::kEvaluation), 6 * kWidth * 4 / 2);
  EXPECT_EQ(group->stats().sent_for(Traffic::kTensor), 0);
  EXPECT_EQ(background->stats().sent_for(Traffic::kTensor), 6 * kWidth * 4 / 2);
}

TEST(TensorGroup, ARankAloneCommunicatesNothing) {
  const TensorGroup tensor;
  Arena arena = Arena::measuring("work");
  const Tensor x = arena.allocate(DType::kF32, {7, kWidth});
  EXPECT_TRUE(tensor.alone());
  EXPECT_EQ(tensor.gather(x, arena).raw(), x.raw());
  EXPECT_EQ(tensor.reduce(x).raw(), x.raw());
  EXPECT_EQ(tensor.wait(tensor.begin_gather({.own = x, .whole = {}}, arena)).raw(), x.raw());
  EXPECT_EQ(tensor.wait(tensor.begin_reduce(x)).raw(), x.raw());
  const SharedRows rows = tensor.allocate(arena, DType::kF32, 3, kWidth, false);
  EXPECT_EQ(rows.own.raw(), rows.whole.raw());
  EXPECT_THROW(tensor.reduce(x, rows.own), std::logic_error);
}

TEST(TensorGroup, TokensThatDoNotDivideAreRefused) {
  const std::unique_ptr<World> world = make_sim_world(0, 2);
  const std::unique_ptr<Device> device = world->make_device();
  const std::unique_ptr<Communicator> group = world->everyone("tp");
  CommQueue queue(*device, true);
  Arena arena = Arena::measuring("work");
  const TensorGroup tensor(*group, *group, queue, true);
  EXPECT_THROW(tensor.reduce(arena.allocate(DType::kF32, {7, kWidth})), std::logic_error);
  EXPECT_THROW(tensor.allocate(arena, DType::kF32, 7, kWidth, false), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
