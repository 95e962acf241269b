#include "comm/waiting_time.h"

#include <gtest/gtest.h>

#include <thread>

namespace meshtrain {
namespace {

using std::chrono::milliseconds;

TEST(WaitingTime, AStopCountsLittle) {
  WaitingTime waited;
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_EQ(waited.passed(), milliseconds(100));
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_EQ(waited.passed(), milliseconds(200));
  waited.restart();
  EXPECT_LE(waited.passed(), milliseconds(100));
}

TEST(WaitingTime, PassesWhileItIsAsked) {
  WaitingTime waited;
  const auto begin = std::chrono::steady_clock::now();
  while (waited.passed() < milliseconds(20)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
}

}  // namespace
}  // namespace meshtrain
