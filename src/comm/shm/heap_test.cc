#include "comm/shm/heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "comm/shm/group_block.h"

namespace meshtrain::shm {
namespace {

constexpr auto kCategory = MemoryCategory::kGradients;

class SharedHeap : public ::testing::Test {
 protected:
  bool is_in_slice_of(int rank, const std::byte* block) const {
    const std::byte* begin = area_->heap_of(rank);
    return block >= begin && block < begin + area_->layout().heap_bytes;
  }
  static bool is_zero(const std::byte* block, std::int64_t bytes) {
    return std::all_of(block, block + bytes, [](std::byte b) { return b == std::byte{0}; });
  }

  std::shared_ptr<Area> area_ = Area::make(3, ShmArea::Ranks::kProcesses);
  Heap heap_{area_, 1};
};

TEST_F(SharedHeap, GivesZeroedPagesOfItsSlice) {
  std::byte* first = heap_.take(1, kCategory);
  std::byte* second = heap_.take(kPage + 1, kCategory);
  EXPECT_TRUE(is_in_slice_of(1, first) && is_in_slice_of(1, second));
  EXPECT_EQ(second - first, static_cast<std::ptrdiff_t>(kPage));
  std::memset(second, 0xFF, kPage + 1);
  ASSERT_TRUE(heap_.give_back(second, kPage + 1));
  EXPECT_EQ(heap_.take(2 * kPage, kCategory), second);
  EXPECT_TRUE(is_zero(second, 2 * kPage));
}

TEST_F(SharedHeap, JoinsNeighboursThatAreFree) {
  std::array<std::byte*, 4> blocks;
  for (std::byte*& block : blocks) block = heap_.take(kPage, kCategory);
  for (const std::size_t i : {0U, 2U, 1U}) EXPECT_TRUE(heap_.give_back(blocks[i], kPage));
  EXPECT_EQ(heap_.take(3 * kPage, kCategory), blocks[0]);
  EXPECT_GT(heap_.take(kPage, kCategory), blocks[3]);
}

TEST_F(SharedHeap, LongBlocksBeginOnLargePages) {
  heap_.take(kPage, kCategory);
  const std::byte* block = heap_.take(std::int64_t{5} << 20, kCategory);
  EXPECT_EQ((block - area_->at(0)) % (std::int64_t{2} << 20), 0);
  EXPECT_EQ(heap_.take(kPage, kCategory), area_->heap_of(1) + kPage);  // the gap is not lost
}

TEST_F(SharedHeap, LeavesOtherCategoriesAndForeignBlocksAlone) {
  for (const auto category : {MemoryCategory::kMaster, MemoryCategory::kOptimizer, MemoryCategory::kActivations,
                              MemoryCategory::kWorkspace}) {
    EXPECT_EQ(heap_.take(100, category), nullptr);
  }
  std::byte local{};
  EXPECT_FALSE(heap_.give_back(&local, 1));
  EXPECT_FALSE(heap_.give_back(area_->heap_of(2), 1));
}

TEST_F(SharedHeap, RefusesMoreThanTheMachineHas) {
  EXPECT_EQ(heap_.take(std::numeric_limits<std::int64_t>::max() - 10'000, kCategory), nullptr);
}

TEST_F(SharedHeap, DeviceOfAProcessUsesIt) {
  const auto device = make_cpu_device(std::make_shared<Heap>(area_, 2));
  {
    const Buffer shared = device->allocate(1000, MemoryCategory::kParameters);
    const Buffer own = device->allocate(1000, MemoryCategory::kActivations);
    EXPECT_TRUE(is_in_slice_of(2, shared.data()));
    EXPECT_FALSE(is_in_slice_of(2, own.data()));
    EXPECT_EQ(area_->publish(own.data(), 1000), Area::kStaged);
    EXPECT_EQ(area_->resolve(area_->publish(shared.data(), 1000)), shared.data());
    EXPECT_EQ(device->memory().current().total(), 2000);
  }
  EXPECT_EQ(device->memory().current().total(), 0);
  EXPECT_THROW(device->allocate(std::int64_t{1} << 55, MemoryCategory::kParameters), UserError);
}

TEST(SharedArea, EveryPartOfAGroupBlockLiesInside) {
  for (const int ranks : {1, 2, 7, 64, 1024}) {
    const std::uint64_t bytes = GroupBlock::bytes(ranks, true);
    const GroupBlock block(nullptr, ranks);
    const auto end = reinterpret_cast<std::uintptr_t>(block.pair_staging(ranks - 1, ranks - 1, 1)) +
                     static_cast<std::uintptr_t>(block.pair_chunk());
    EXPECT_EQ(end, bytes);
    const auto staging = reinterpret_cast<std::uintptr_t>(block.staging(0));
    EXPECT_EQ(staging % kPage, 0U);
    EXPECT_LE(reinterpret_cast<std::uintptr_t>(&block.mailbox(ranks - 1, ranks - 1) + 1), staging);
    EXPECT_LE(reinterpret_cast<std::uintptr_t>(block.receive_offsets(ranks - 1, 1) + ranks + 1),
              reinterpret_cast<std::uintptr_t>(&block.mailbox(0, 0)));
  }
}

}  // namespace
}  // namespace meshtrain::shm
