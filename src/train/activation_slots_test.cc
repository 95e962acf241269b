#include "train/activation_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "pipeline/schedule.h"

namespace meshtrain {
namespace {

ModelPiece piece_of(std::int64_t blocks, bool head = false) {
  return {.first_block = 0, .blocks = blocks, .embedding = false, .head = head};
}

std::vector<PipelineAction> order_of(const char* schedule, const PipelineShape& shape, int stage) {
  return find_schedule(schedule)->order(shape, stage);
}

// Narayanan et al. 2021, section 2.2, at 8 stages of 3 pieces: 2 (p - 1 - r) + (v - 1) p passes before the
// first backward pass, and the one at work.
TEST(ActivationSlots, PiecesOfOneSizeHaveASlotForEachThatIsAlive) {
  for (int stage = 0; stage < 8; ++stage) {
    for (const std::int64_t blocks : {1, 4}) {
      const SlotCounts counts = slots_for(order_of("interleaved", {8, 3, 64}, stage),
                                          {piece_of(blocks), piece_of(blocks), piece_of(blocks, stage == 7)});
      EXPECT_EQ(counts.blocks_in_slot, blocks);
      EXPECT_EQ(counts.blocks, 2 * (7 - stage) + 2 * 8 + 1);
      EXPECT_EQ(counts.split, 0);
      EXPECT_LE(counts.head, 8);
      EXPECT_EQ(counts.head > 0, stage == 7);
    }
  }
}

TEST(ActivationSlots, OnePieceHasASlotForEachMicroBatch) {
  for (const std::int64_t blocks : {0, 1, 7}) {
    const SlotCounts counts = slots_for(order_of("1f1b", {4, 1, 9}, 1), {piece_of(blocks)});
    EXPECT_EQ(counts.blocks * counts.blocks_in_slot, 3 * blocks);
    EXPECT_EQ(counts.head, 0);
  }
  const SlotCounts last = slots_for(order_of("zb-h1", {4, 1, 9}, 2), {piece_of(6, true)});
  EXPECT_EQ(last.blocks, 4);
  EXPECT_EQ(last.head, 4);
  EXPECT_EQ(last.split, 3);
}

// Walks an order with pieces of any sizes: the blocks alive fill the slots at their most, and never share one.
TEST(ActivationSlots, HoldWhatIsAliveAndNoMore) {
  std::mt19937 random(7);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  const std::unique_ptr<Device> device = make_sim_device();
  constexpr std::int64_t kBlock = 128;
  for (int round = 0; round < 200; ++round) {
    const bool chunks = round % 2 == 0;
    const PipelineShape shape = {2 + below(5), chunks ? 2 + below(3) : 1, 1 + below(20)};
    const int stage = below(shape.stages);
    const std::vector<PipelineAction> order = order_of(chunks ? "interleaved" : "1f1b", shape, stage);
    std::vector<ModelPiece> pieces;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      pieces.push_back(
          piece_of(below(4) * (1 + round % 3), chunk + 1 == shape.chunks && stage + 1 == shape.stages));
    }
    const SlotCounts counts = slots_for(order, pieces);
    const SlotBytes bytes = {.blocks = kBlock * counts.blocks_in_slot, .head = 192};
    ActivationSlots slots(*device, counts, bytes);
    struct Live {
      ActivationSlots::Lease lease;
      std::vector<const void*> places;
    };
    std::map<std::pair<int, std::int64_t>, Live> alive;
    std::set<const void*> used;
    std::int64_t most = 0;
    for (const PipelineAction& action : order) {
      const ModelPiece& piece = pieces[static_cast<std::size_t>(action.chunk)];
      const std::pair<int, std::int64_t> key = {action.chunk, action.micro_batch};
      if (action.step == PipelineStep::kForward) {
        Live& live = alive[key];
        live.lease = slots.take(piece);
        const std::vector<Arena*> arenas = slots.arenas(piece, live.lease);
        ASSERT_EQ(arenas.size(), static_cast<std::size_t>(piece.blocks + (piece.head ? 1 : 0)));
        for (std::size_t i = 0; i < arenas.size(); ++i) {
          const bool head = piece.head && i + 1 == arenas.size();
          live.places.push_back(arenas[i]->allocate(DType::kU8, {head ? bytes.head : kBlock}).raw());
          EXPECT_TRUE(used.insert(live.places.back()).second) << "two that are alive lie in one place";
        }
      } else {
        for (const void* place : alive.at(key).places) used.erase(place);
        alive.erase(key);
      }
      std::int64_t blocks = 0;
      for (const auto& [of, live] : alive) blocks += pieces[static_cast<std::size_t>(of.first)].blocks;
      most = std::max(most, blocks);
    }
    EXPECT_EQ(counts.blocks * counts.blocks_in_slot, most);
    EXPECT_EQ(slots.filled(), slots.capacity());
    EXPECT_EQ(slots.capacity(), most * kBlock + counts.head * bytes.head);
    EXPECT_EQ(slots.peaks().blocks, counts.blocks > 0 ? bytes.blocks : 0);
  }
}

TEST(ActivationSlots, MoreThanPlannedIsAnErrorAndAnEvaluationHasAllOfThem) {
  const std::unique_ptr<Device> device = make_sim_device();
  ActivationSlots slots(*device, {.blocks_in_slot = 2, .blocks = 3, .head = 1, .split = 1},
                        SlotBytes{.blocks = 64, .head = 64, .split = 128, .whole = 200});
  EXPECT_EQ(slots.capacity(), 3 * 64 + 64 + 128);
  EXPECT_EQ(slots.whole().capacity(), slots.capacity());
  const ActivationSlots::Lease one = slots.take(piece_of(4, true));
  EXPECT_THROW(slots.whole(), std::logic_error);
  EXPECT_THROW(slots.take(piece_of(4)), std::logic_error);
  EXPECT_THROW(slots.take(piece_of(2, true)), std::logic_error);
  {
    const ActivationSlots::Lease split = slots.take_split();
    EXPECT_EQ(split.first()->capacity(), 128);
    EXPECT_THROW(slots.take_split(), std::logic_error);
  }
  slots.take_split();
  EXPECT_THROW(one.first()->allocate(DType::kU8, {65}), std::logic_error);
  // Where evaluations need more than training.
  const ActivationSlots small(*device, {.blocks = 1}, SlotBytes{.blocks = 64, .whole = 200});
  EXPECT_EQ(small.capacity(), 200);
}

}  // namespace
}  // namespace meshtrain
