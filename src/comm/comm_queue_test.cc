#include "comm/comm_queue.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/trace.h"

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
  std::atomic<bool> ends{false};
  {
    CommQueue queue(*device, true);
    queue.submit([&](Stream&) {
      begun.set_value();
      while (!ends) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ++ran;
    });
    queue.submit([&](Stream&) { ++ran; });
    begun.get_future().wait();
    ends = true;
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

std::vector<std::string> texts(const TraceTrack& track) {
  std::vector<std::string> result;
  for (const TraceEvent& event : track.events()) {
    result.push_back(fmt::format("{}: {}", name_of(event.kind), track.text_of(event)));
  }
  return result;
}

TEST(CommQueue, JobsAndWaitingShowInTheTrace) {
  const auto device = make_cpu_device();
  Trace trace;
  CommQueue queue(*device, true);
  ASSERT_TRUE(queue.in_background());
  queue.set_trace(&trace.track("dp"), &trace.track("compute"));
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  TraceTrack* inside = nullptr;
  queue.submit([&](Stream& stream) { inside = stream.trace(); }, "first");
  queue.wait_all();
  const auto waits = trace.track("compute").events().size();  // none, or one
  const auto second = queue.submit([gone](Stream&) { gone.wait(); }, "reduce gradients");
  // Lets the job end once this thread sleeps.
  std::thread opens([&, status = fmt::format("/proc/self/task/{}/stat", gettid())] {
    char state = 'R';
    for (std::string word; state != 'S';) std::ifstream(status) >> word >> word >> state;
    go.set_value();
  });
  queue.wait(second);
  opens.join();
  queue.wait(second);  // long done: no waiting
  EXPECT_EQ(inside, &trace.track("dp"));
  EXPECT_EQ(texts(trace.track("dp")),
            (std::vector<std::string>{"communication: first", "communication: reduce gradients"}));
  EXPECT_EQ(trace.track("compute").events().size(), waits + 1);
  EXPECT_EQ(texts(trace.track("compute")).back(), "wait: wait for dp");

  queue.set_trace(nullptr, nullptr);
  queue.submit([](Stream&) {});
  queue.wait_all();
  EXPECT_EQ(trace.track("dp").events().size(), 2U);
  EXPECT_EQ(trace.track("compute").events().size(), waits + 1);
}

TEST(CommQueue, JobsOfTheCallingThreadHaveNoEvents) {
  const auto device = make_cpu_device();
  Trace trace;
  CommQueue queue(*device, false);
  ASSERT_FALSE(queue.in_background());
  queue.set_trace(&trace.track("compute"), &trace.track("compute"));
  TraceTrack* inside = nullptr;
  queue.submit([&](Stream& stream) { inside = stream.trace(); }, "reduce gradients");
  queue.wait_all();
  EXPECT_EQ(inside, &trace.track("compute"));
  EXPECT_TRUE(trace.track("compute").events().empty());
}

}  // namespace
}  // namespace meshtrain
