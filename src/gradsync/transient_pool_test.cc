#include "gradsync/transient_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

namespace meshtrain::gradsync {
namespace {

TEST(TransientPool, RoomIsUsedAgainFirstFit) {
  const std::unique_ptr<Device> device = make_sim_device();
  TransientPool pool(*device, std::nullopt);
  const Tensor a = pool.allocate(DType::kF32, 16);  // 64 bytes each
  const Tensor b = pool.allocate(DType::kBF16, 17);
  const Tensor c = pool.allocate(DType::kF32, 16);
  EXPECT_EQ(pool.peak(), 192);
  pool.release(b);
  EXPECT_EQ(pool.allocate(DType::kF32, 1).raw(), b.raw());
  pool.release(a);
  EXPECT_EQ(pool.allocate(DType::kF32, 32).raw(), static_cast<char*>(c.raw()) + 64);  // two lines: behind
  EXPECT_EQ(pool.peak(), 320);
  EXPECT_EQ(pool.allocate(DType::kF32, 16).raw(), a.raw());
  EXPECT_EQ(pool.peak(), 320);
  EXPECT_EQ(device->memory().peak_total(), 0);
}

TEST(TransientPool, GivesNoMoreThanItsCapacity) {
  const std::unique_ptr<Device> device = make_cpu_device();
  TransientPool pool(*device, 128);
  EXPECT_EQ(device->memory().current()[MemoryCategory::kCommunication], 128);
  const Tensor a = pool.allocate(DType::kF32, 16);
  pool.allocate(DType::kF32, 16);
  EXPECT_THROW(pool.allocate(DType::kF32, 1), std::logic_error);
  pool.release(a);
  EXPECT_THROW(pool.release(a), std::logic_error);
  pool.allocate(DType::kF32, 1);
}

}  // namespace
}  // namespace meshtrain::gradsync
