#include "comm/comm_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace meshtrain {
namespace {

class CommQueueBoth : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
  CommQueue queue_{*device_, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Background, CommQueueBoth, ::testing::Bool());

TEST_P(CommQueueBoth, RunsJobsInOrder) {
  std::vector<int> order;
  for (int job = 0; job < 100; ++job) {
    EXPECT_EQ(queue_.submit([&order, job](Stream&) { order.push_back(job); }), job + 1);
  }
  queue_.wait_all();
  ASSERT_EQ(order.size(), 100U);
  for (int job = 0; job < 100; ++job) EXPECT_EQ(order[job], job);
  queue_.wait(1);  // long done
}

TEST_P(CommQueueBoth, GivesJobsAStreamOfOneThread) {
  int threads = 0;
  const Device* device = nullptr;
  queue_.submit([&](Stream& stream) {
    threads = stream.threads();
    device = &stream.device();
  });
  queue_.wait_all();
  EXPECT_EQ(threads, 1);
  EXPECT_EQ(device, device_.get());
}

TEST(CommQueue, WorksInTheBackground) {
  const auto device = make_cpu_device();
  CommQueue queue(*device, true);
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<bool> ran{false};
  queue.submit([&, gone](Stream&) {
    gone.wait();
    ran = true;
  });
  const auto second = queue.submit([](Stream&) {});
  EXPECT_FALSE(ran);  // it would hang in the foreground
  go.set_value();
  queue.wait(second);
  EXPECT_TRUE(ran);
}

TEST(CommQueue, AnExceptionStopsTheJobsBehindItAndIsThrownEverAfter) {
  const auto device = make_cpu_device();
  CommQueue queue(*device, true);
  const auto before = queue.submit([](Stream&) {});
  queue.wait(before);
  bool ran = false;
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  const auto bad = queue.submit([gone](Stream&) {
    gone.wait();
    throw std::runtime_error("a lost rank");
  });
  const auto behind = queue.submit([&](Stream&) { ran = true; });
  go.set_value();
  for (const auto ticket : {bad, behind, bad}) EXPECT_THROW(queue.wait(ticket), std::runtime_error);
  EXPECT_THROW(queue.submit([](Stream&) {}), std::runtime_error);
  EXPECT_THROW(queue.wait_all(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(CommQueue, DropsWhatHasNotBegunAtItsEnd) {
  const auto device = make_cpu_device();
  std::atomic<int> ran{0};
  std::promise<void> begun;
  {
    CommQueue queue(*device, true);
    queue.submit([&](Stream&) {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++ran;
    });
    queue.submit([&](Stream&) { ++ran; });
    begun.get_future().wait();
  }
  EXPECT_EQ(ran, 1);
}

TEST(CommQueue, RunsAtOnceOnASimulatedDevice) {
  const auto device = make_sim_device();
  CommQueue queue(*device, true);
  const auto self = std::this_thread::get_id();
  std::thread::id other;
  queue.submit([&](Stream&) { other = std::this_thread::get_id(); });
  EXPECT_EQ(other, self);
  queue.wait_all();
}

}  // namespace
}  // namespace meshtrain
