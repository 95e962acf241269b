// What the shm engine does when ranks die, stop, leave, disagree or are told to give up: an error on every
// rank, which says what happened, never a hang.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/engines.h"
#include "comm_calls.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;
using testing::all_of;
using testing::Calls;
using testing::expect_contains;
using testing::kAllOps;
using testing::Lines;
using testing::RankProcess;

// A number that processes share.
class SharedCount {
 public:
  SharedCount() {
    void* page =
        mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) std::abort();
    value_ = new (page) std::atomic<int>(0);
  }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  ~SharedCount() { munmap(value_, sizeof(*value_)); }
  std::atomic<int>& operator*() const { return *value_; }

 private:
  std::atomic<int>* value_;
};

class EachCollective : public ::testing::TestWithParam<CommOp> {};
INSTANTIATE_TEST_SUITE_P(Faults, EachCollective, ::testing::ValuesIn(kAllOps), [](const auto& p) {
  std::string name(name_of(p.param));
  std::erase(name, '-');
  return name;
});

// Three processes that call `op` for ever, which ends with an exception.
class Loops {
 public:
  Loops(CommOp op, std::int64_t count, std::chrono::milliseconds deadline)
      : area_(ShmArea::create(3, ShmArea::Ranks::kProcesses)) {
    const auto body = [this, op, count](World& world) {
      const auto comm = world.group("all", all_of(world));
      Calls calls(world, *comm, count);
      calls.run(op);
      (*looping_).fetch_add(1);
      for (;;) calls.run(op);
      return Lines();
    };
    for (int rank = 0; rank < 3; ++rank) processes_.emplace_back(*area_, rank, WorldOptions{deadline}, body);
    const auto end = Clock::now() + std::chrono::seconds(30);
    while ((*looping_).load() < 3 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // Somewhere in the middle.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  RankProcess& operator[](std::size_t rank) { return processes_[rank]; }
  ShmArea& area() { return *area_; }

 private:
  SharedCount looping_;
  std::shared_ptr<ShmArea> area_;
  std::vector<RankProcess> processes_;
};

constexpr std::chrono::milliseconds kLong{60'000};
// Of deadlines that are to pass; a rank that the system lets wait is not to be missed.
constexpr std::chrono::milliseconds kShort{1'500};

TEST_P(EachCollective, NamesARankThatIsKilledInside) {
  // Short and long calls, so that it dies in different places.
  for (const std::int64_t count : {100, 100'000}) {
    Loops ranks(GetParam(), count, kLong);
    ranks[1].signal(SIGKILL);
    const auto killed = Clock::now();
    for (const std::size_t rank : {0U, 2U}) expect_contains(ranks[rank].finish(), {"rank 1 died during"});
    EXPECT_LT(Clock::now() - killed, kLong / 2);
    expect_contains(ranks[1].finish(), {"ended by signal 9"});
  }
}

TEST_P(EachCollective, NamesARankThatDiesBefore) {
  const CommOp op = GetParam();
  const auto failures = testing::run_processes(3, {kLong}, [op](World& world) {
    const auto comm = world.group("all", all_of(world));
    Calls calls(world, *comm, 1000);
    calls.run(op);
    if (world.rank() == 1) raise(SIGKILL);
    const auto begin = Clock::now();
    try {
      for (;;) calls.run(op);
    } catch (const CommError& e) {
      if (Clock::now() - begin > kLong / 2) return Lines{"it took long"};
      return Lines{e.what()};
    }
  });
  for (const std::size_t rank : {0U, 2U}) {
    expect_contains(failures[rank], {"rank 1 died during", name_of(op).data(), "of group \"all\""});
  }
}

TEST_P(EachCollective, SaysWhoWaitsForAStoppedRank) {
  Loops ranks(GetParam(), 1000, kShort);
  ranks[1].signal(SIGSTOP);
  for (const std::size_t rank : {0U, 2U}) {
    const Lines lines = ranks[rank].finish();
    expect_contains(lines, {"did not finish within 1.5 s", "rank 1", name_of(GetParam()).data()});
  }
  // It comes back to a world that has failed.
  ranks[1].signal(SIGCONT);
  expect_contains(ranks[1].finish(), {"did not finish within 1.5 s"});
}

TEST(Faults, DeadlineNamesTheOperationAndWhoHadArrived) {
  const auto failures = testing::run_processes(3, {kShort}, [](World& world) {
    const auto comm = world.group("dp", all_of(world));
    Calls calls(world, *comm, 4);
    calls.run(CommOp::kBarrier);
    if (world.rank() == 1) {
      // Alive, but elsewhere.
      try {
        for (;;) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          world.group("alone", {1});
        }
      } catch (const CommError& e) {
        return Lines{e.what()};
      }
    }
    calls.run(CommOp::kAllReduce);
    return Lines();
  });
  for (const Lines& lines : failures) {
    expect_contains(lines, {"all-reduce sum of 4 fp32 (operation 2 of group \"dp\", ranks 0 1 2)",
                            "did not finish within 1.5 s: ranks 0 2 had arrived, rank 1 had not"});
  }
}

TEST(Faults, DeadlineOfAnExchangeNamesThePair) {
  std::promise<void> failed;
  const auto failures = testing::run_threads(2, {kShort}, [&](World& world) {
    const auto comm = world.group("pp", all_of(world));
    std::array<float, 8> data{};
    if (world.rank() == 1) {
      failed.get_future().wait();
      return Lines();
    }
    Lines lines;
    try {
      const Transfer receive{1, Tensor(data.data(), DType::kF32, {8})};
      comm->exchange({}, {&receive, 1});
    } catch (const CommError& e) {
      lines.emplace_back(e.what());
    }
    failed.set_value();
    return lines;
  });
  expect_contains(failures[0], {"exchange (number 1 of rank 0, of group \"pp\", ranks 0 1)",
                                "did not finish within 1.5 s", "rank 1 had not sent message 1 of 1 (8 fp32)"});
}

// Each waits for the one before it; whose deadline passes first, rank 3, does not see past that.
TEST(Faults, DeadlineNamesTheRankThatWaitsForNobody) {
  std::atomic<int> failed{0};
  const auto failures = testing::run_threads(4, {std::chrono::milliseconds(3000)}, [&](World& world) {
    const auto comm = world.group("pp", all_of(world));
    std::array<float, 8> data{};
    const Tensor message(data.data(), DType::kF32, {8});
    if (world.rank() == 0) {
      while (failed < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Lines();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(700 * (3 - world.rank())));
    const Transfer receive{world.rank() - 1, message};
    Lines lines;
    try {
      comm->exchange({}, {&receive, 1});
    } catch (const CommError& e) {
      lines.emplace_back(e.what());
    }
    ++failed;
    return lines;
  });
  for (const int rank : {1, 2, 3}) {
    expect_contains(failures[rank], {"did not finish within 3 s: rank 2 had not sent message 1 of 1",
                                     "; of all ranks only rank 0 waits for nobody"});
  }
}

TEST(Faults, GroupThatARankDoesNotMake) {
  std::atomic<int> failed{0};
  const auto failures = testing::run_threads(3, {kShort}, [&](World& world) {
    Lines lines;
    try {
      if (world.rank() != 2) world.group("tp", {0, 1, 2});
    } catch (const CommError& e) {
      lines.emplace_back(e.what());
    }
    if (world.rank() != 2) ++failed;
    while (failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return lines;
  });
  for (const int rank : {0, 1}) {
    expect_contains(failures[rank], {"the making of group \"tp\"", "ranks 0 1 had arrived, rank 2 had not"});
  }
}

struct Mismatch {
  std::string name;
  std::string common;  // as to_string has it
  std::string odd;
  std::function<void(Communicator&, Tensor, bool odd)> call;
};

TEST(Faults, UnlikeCallsAreShownOnEveryRank) {
  const auto as = [](const Tensor& t, DType dtype, std::int64_t count) {
    return Tensor(t.raw(), dtype, {count});
  };
  const std::vector<Mismatch> mismatches = {
      {"operation", "barrier", "broadcast of 3 fp32 from rank 0",
       [&](Communicator& c, Tensor t, bool odd) { odd ? c.broadcast(as(t, DType::kF32, 3), 0) : c.barrier(); }},
      {"root", "broadcast of 3 fp32 from rank 0", "broadcast of 3 fp32 from rank 1",
       [&](Communicator& c, Tensor t, bool odd) { c.broadcast(as(t, DType::kF32, 3), odd ? 1 : 0); }},
      {"count", "all-reduce sum of 600 fp32", "all-reduce sum of 3 fp32",
       [&](Communicator& c, Tensor t, bool odd) {
         const Tensor data = as(t, DType::kF32, odd ? 3 : 600);
         c.all_reduce(data, data, ReduceOp::kSum);
       }},
      {"dtype", "all-reduce sum of 600 int32", "all-reduce sum of 600 fp32",
       [&](Communicator& c, Tensor t, bool odd) {
         const Tensor data = as(t, odd ? DType::kF32 : DType::kI32, 600);
         c.all_reduce(data, data, ReduceOp::kSum);
       }},
      {"reduction", "reduce-scatter max of 200 fp32", "reduce-scatter min of 200 fp32",
       [&](Communicator& c, Tensor t, bool odd) {
         c.reduce_scatter(as(t, DType::kF32, 600), as(t, DType::kF32, 600).slice(0, 200 * c.rank(), 200),
                          odd ? ReduceOp::kMin : ReduceOp::kMax);
       }},
      {"gathered count", "all-gather of 2 fp32", "all-gather of 200 fp32",
       [&](Communicator& c, Tensor t, bool odd) {
         const std::int64_t n = odd ? 200 : 2;
         c.all_gather(as(t, DType::kF32, n), as(t, DType::kF32, 3 * n));
       }},
      {"all-to-all dtype", "all-to-all of fp32", "all-to-all of bf16",
       [&](Communicator& c, Tensor t, bool odd) {
         const std::array<std::int64_t, 3> counts = {1, 1, 1};
         const Tensor data = as(t, odd ? DType::kBF16 : DType::kF32, 3);
         c.all_to_all(data, counts, data, counts);
       }},
  };
  for (const Mismatch& m : mismatches) {
    SCOPED_TRACE(m.name);
    const auto failures = testing::run_threads(3, {kLong}, [&](World& world) {
      const auto comm = world.group("g", {2, 1, 0});
      std::vector<float> data(2000);
      comm->barrier();
      m.call(*comm, Tensor(data.data(), DType::kF32, {2000}), world.rank() == 1);
      return Lines();
    });
    for (const Lines& lines : failures) {
      expect_contains(lines, {"the ranks of group \"g\" differ in operation 2", "ranks 2 0 called " + m.common,
                              "rank 1 called " + m.odd});
    }
  }
}

// Every collective against every other one, with and without data.
TEST(Faults, AnyTwoCollectivesAreToldApart) {
  for (const CommOp common : kAllOps) {
    for (const CommOp odd : kAllOps) {
      if (common == odd || common == CommOp::kExchange || odd == CommOp::kExchange) continue;
      for (const std::int64_t count : {0, 1, 3000}) {
        const auto failures = testing::run_threads(3, {kLong}, [&](World& world) {
          const auto comm = world.group("g", all_of(world));
          Calls(world, *comm, count).run(world.rank() == 1 ? odd : common);
          return Lines{"no error"};
        });
        for (const Lines& lines : failures) {
          expect_contains(lines, {"the ranks of group \"g\" differ in operation 1",
                                  fmt::format("ranks 0 2 called {}", name_of(common)),
                                  fmt::format("rank 1 called {}", name_of(odd))});
        }
      }
    }
  }
}

// An exchange meets nobody: each rank waits for what the others do not do.
TEST(Faults, AnExchangeIsNoOtherCall) {
  constexpr std::chrono::milliseconds kSoon{200};  // the call fails however long ranks take
  for (const CommOp other : kAllOps) {
    if (other == CommOp::kExchange) continue;
    for (const bool odd : {false, true}) {
      const auto failures = testing::run_threads(3, {kSoon}, [&](World& world) {
        const auto comm = world.group("g", all_of(world));
        Calls(world, *comm, 5).run((world.rank() == 1) == odd ? CommOp::kExchange : other);
        return Lines{"no error"};
      });
      for (const Lines& lines : failures) expect_contains(lines, {"did not finish within 0.2 s", "\"g\""});
    }
  }
}

TEST(Faults, UnlikeCountsOfAnAllToAllNameBothRanks) {
  for (const auto run : {testing::run_threads, testing::run_processes}) {
    const auto failures = run(3, {kLong}, [](World& world) {
      const auto comm = world.group("ep", all_of(world));
      std::vector<float> in(6), out(7);
      const std::array<std::int64_t, 3> counts = {2, 2, 2};
      std::array<std::int64_t, 3> receive = counts;
      if (world.rank() == 2) receive[0] = 3;
      comm->all_to_all(Tensor(in.data(), DType::kF32, {6}), counts,
                       Tensor(out.data(), DType::kF32, {world.rank() == 2 ? 7 : 6}), receive);
      return Lines();
    });
    for (const Lines& lines : failures) {
      expect_contains(lines, {"all-to-all", "rank 0 sends 2 elements to rank 2, which expects 3"});
    }
  }
}

TEST(Faults, UnlikeMessagesOfAnExchangeNameBothRanks) {
  const auto failures = testing::run_processes(2, {kLong}, [](World& world) {
    const auto comm = world.group("pp", all_of(world));
    std::vector<float> data(8);
    const Transfer transfer{1 - world.rank(), Tensor(data.data(), DType::kF32, {world.rank() == 0 ? 8 : 4})};
    if (world.rank() == 0) {
      comm->exchange({&transfer, 1}, {});
    } else {
      comm->exchange({}, {&transfer, 1});
    }
    return Lines();
  });
  for (const Lines& lines : failures) {
    expect_contains(lines, {"rank 0 sends 8 fp32 to rank 1, which expects 4 fp32"});
  }
}

TEST(Faults, RankThatLeavesIsNamed) {
  for (const auto run : {testing::run_threads, testing::run_processes}) {
    const auto failures = run(3, {kLong}, [](World& world) {
      const auto comm = world.group("all", all_of(world));
      comm->barrier();
      if (world.rank() == 2) return Lines();
      comm->barrier();
      return Lines{"no error"};
    });
    for (const int rank : {0, 1}) expect_contains(failures[rank], {"rank 2 left the run during barrier"});
    EXPECT_TRUE(failures[2].empty());
  }
}

// Every call of this world throws the first reason, also on groups that the fault did not touch.
TEST(Faults, AfterAnErrorTheWorldOnlyThrows) {
  const auto failures = testing::run_threads(2, {kLong}, [](World& world) {
    const auto comm = world.group("all", all_of(world));
    const auto alone = world.group("alone", {world.rank()});
    Calls calls(world, *comm, 10);
    Calls own(world, *alone, 10);
    Lines unexpected;
    const auto expect_error = [&](const std::function<void()>& call) {
      try {
        call();
        unexpected.emplace_back("no error");
      } catch (const CommError& e) {
        if (std::string(e.what()).find("differ in operation 1") == std::string::npos)
          unexpected.emplace_back(e.what());
      }
    };
    expect_error([&] { calls.run(world.rank() == 0 ? CommOp::kBarrier : CommOp::kAllReduce); });
    for (const CommOp op : kAllOps) {
      expect_error([&] { calls.run(op); });
      expect_error([&] { own.run(op); });
    }
    expect_error([&] { world.group("new", {world.rank()}); });
    return unexpected;
  });
  for (const Lines& lines : failures) EXPECT_EQ(lines, Lines());
}

TEST_P(EachCollective, AbortFreesEveryRank) {
  const CommOp op = GetParam();
  // Rank 2 never comes.
  const auto body = [op](World& world) {
    const auto comm = world.group("all", all_of(world));
    if (world.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      world.abort("rank 2 has no more disk");
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return Lines();
    }
    Calls(world, *comm, 100'000).run(op);
    return Lines{"no error"};
  };
  for (const auto run : {testing::run_threads, testing::run_processes}) {
    const auto begin = Clock::now();
    const auto failures = run(3, {kLong}, body);
    EXPECT_LT(Clock::now() - begin, kLong / 2);
    for (const int rank : {0, 1}) EXPECT_EQ(failures[rank], Lines{"rank 2 has no more disk"});
  }
}

// So that ranks which then fail for the same reason say the same.
TEST_P(EachCollective, IsDoneByAllOnceOneHasDoneIt) {
  const CommOp op = GetParam();
  if (op == CommOp::kExchange) GTEST_SKIP() << "a rank may be done while two others are not";
  const auto body = [op](World& world) {
    const auto comm = world.group("all", all_of(world));
    Calls(world, *comm, 3000).run(op);
    world.abort("after it");
    return Lines();
  };
  for (int i = 0; i < 50; ++i) {
    for (const Lines& lines : testing::run_threads(4, {kLong}, body)) ASSERT_EQ(lines, Lines());
  }
}

TEST(Faults, SupervisorAborts) {
  Loops ranks(CommOp::kAllReduce, 1000, kLong);
  ranks.area().abort("enough");
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks[rank].finish(), Lines{"enough"});
}

// The memory has no name in any file system, so that there is nothing to leave behind.
TEST(Faults, MemoryIsGoneWithItsLastProcess) {
  Loops ranks(CommOp::kAllReduce, 100'000, kLong);
  std::ifstream maps("/proc/" + std::to_string(ranks[0].id()) + "/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_NE(text.find("/memfd:meshtrain (deleted)"), std::string::npos) << text;
  EXPECT_EQ(text.find("/dev/shm/"), std::string::npos) << text;
}

TEST(Faults, RanksThatCannotBe) {
  EXPECT_THROW(ShmArea::create(0, ShmArea::Ranks::kThreads), UserError);
  EXPECT_THROW(ShmArea::create(100'000, ShmArea::Ranks::kProcesses), UserError);
  const auto area = ShmArea::create(2, ShmArea::Ranks::kThreads);
  const auto world = area->join(1, {});
  EXPECT_THROW(area->join(1, {}), UserError);
  EXPECT_THROW(world->group("g", {0}), std::logic_error);
  EXPECT_THROW(world->group("g", {1, 1}), std::logic_error);
  EXPECT_THROW(world->group("g", {1, 2}), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
