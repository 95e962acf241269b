#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.run(count, threads, [&](std::int64_t task) { ++runs[static_cast<std::size_t>(task)]; });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadPool, ThreadsThatTheSystemRefusesAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space that is taken away here";
#endif
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {rlim_t{1} << 30U, rlim_t{1} << 30U};  // room for the stacks of about a hundred
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(2000);
    } catch (const UserError&) {
      _exit(7);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  ThreadPool pool(4);
  std::int64_t expected = 0;
  std::atomic<std::int64_t> sum = 0;
  for (std::int64_t loop = 0; loop < 20000; ++loop) {
    const std::int64_t count = loop % 5;
    pool.run(count, 1 + static_cast<int>(loop % 4), [&](std::int64_t task) { sum += task + loop; });
    expected += count * (count - 1) / 2 + count * loop;
  }
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPool, WritesOfTasksAreSeenByTheCallerAndTheNextLoop) {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(64, 0);
  for (int loop = 0; loop < 2000; ++loop) {
    pool.run(64, 3, [&](std::int64_t task) { values[static_cast<std::size_t>(task)] = loop + task; });
    for (std::int64_t i = 0; i < 64; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], loop + i);
  }
}

TEST(ThreadPool, ThrowsAgainAndGoesOn) {
  ThreadPool pool(2);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> ran = 0;
    EXPECT_THROW(pool.run(10, 2,
                          [&](std::int64_t task) {
                            ++ran;
                            if (task % 3 == 0) throw std::runtime_error("task");
                          }),
                 std::runtime_error);
    EXPECT_EQ(ran, 10);
  }
}

TEST(ThreadPool, KeepsToTheThreadsAskedFor) {
  ThreadPool pool(4);
  const std::thread::id caller = std::this_thread::get_id();
  pool.run(50, 1, [&](std::int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

}  // namespace
}  // namespace meshtrain
