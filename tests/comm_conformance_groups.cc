// Point to point; groups that work at the same time; background queues; counters.
#include <numeric>
#include <thread>

#include "comm/comm_queue.h"
#include "comm_conformance_parts.h"

namespace meshtrain::testing {
namespace {

// Message `number` from one rank to another, and its length.
float message_element(int from, int to, int number, std::int64_t i) {
  return input_element<float>(static_cast<std::uint64_t>(1000 + to * 16 + number), from, i, false);
}

// Blocks and transfers of the messages that this rank sends or receives.
class Messages {
 public:
  Messages(Conformance& suite, Communicator& comm, Place place) : suite_(suite), comm_(comm), place_(place) {}

  void send(int to, int number, std::int64_t count) {
    const Tensor& data = blocks_.emplace_back(suite_, place_, DType::kF32, count).tensor();
    fill_elements<float>(data, [&](std::int64_t i) { return message_element(comm_.rank(), to, number, i); });
    sends_.push_back({to, data});
  }
  void receive(int from, int number, std::int64_t count) {
    receives_.push_back({from, blocks_.emplace_back(suite_, place_, DType::kF32, count).tensor()});
    numbers_.push_back(number);
  }
  void exchange(const std::string& what) {
    comm_.exchange(sends_, receives_);
    for (std::size_t m = 0; m < receives_.size(); ++m) {
      const int from = receives_[m].peer;
      expect_elements<float>(
          suite_,
          fmt::format("exchange, {}, {}, message {} of rank {}", what, name_of(place_), numbers_[m], from),
          receives_[m].data,
          [&](std::int64_t i) { return message_element(from, comm_.rank(), numbers_[m], i); });
    }
    for (const Block& block : blocks_) {
      suite_.expect(block.guards_untouched(), "exchange, " + what + ", wrote beside its tensors");
    }
  }

 private:
  Conformance& suite_;
  Communicator& comm_;
  Place place_;
  std::vector<Block> blocks_;
  std::vector<Transfer> sends_, receives_;
  std::vector<int> numbers_;
};

void check_shift(Conformance& suite, Communicator& comm, Place place, std::int64_t count) {
  Messages messages(suite, comm, place);
  messages.send((comm.rank() + 1) % comm.size(), 0, count);
  messages.receive((comm.rank() + comm.size() - 1) % comm.size(), 0, count);
  messages.exchange(fmt::format("ring of {}", count));
}

// Several messages of unlike lengths between each two ranks, and to oneself.
void check_all_pairs(Conformance& suite, Communicator& comm, Place place, std::int64_t unit) {
  constexpr int kNumbers = 5;
  const auto length = [&](int from, int to, int number) { return unit * ((from + 2 * to + 3 * number) % 5); };
  Messages messages(suite, comm, place);
  for (int number = 0; number < kNumbers; ++number) {
    for (int peer = 0; peer < comm.size(); ++peer) {
      messages.send(peer, number, length(comm.rank(), peer, number));
    }
  }
  for (int peer = comm.size() - 1; peer >= 0; --peer) {
    for (int number = 0; number < kNumbers; ++number) {
      messages.receive(peer, number, length(peer, comm.rank(), number));
    }
  }
  messages.exchange(fmt::format("all pairs, {} elements a unit", unit));
}

// A pipeline: only neighbours talk, one pair after the other, and the rest is elsewhere.
void check_chain(Conformance& suite, Communicator& comm, Place place) {
  constexpr int kMicrobatches = 4;
  for (int number = 0; number < kMicrobatches; ++number) {
    if (comm.rank() > 0) {
      Messages from_previous(suite, comm, place);
      from_previous.receive(comm.rank() - 1, number, 1000);
      from_previous.exchange("chain");
    }
    if (comm.rank() + 1 < comm.size()) {
      Messages to_next(suite, comm, place);
      to_next.send(comm.rank() + 1, number, 1000);
      to_next.exchange("chain");
    }
  }
}

// Sum of 1 and of the group's world ranks: small enough to be exact.
void check_sum(Conformance& suite, Communicator& comm, std::int64_t count, const std::string& what) {
  const Block block(suite, Place::kMixed, DType::kF32, count);
  fill_elements<float>(block.tensor(), [&](std::int64_t i) {
    return static_cast<float>(comm.ranks()[static_cast<std::size_t>(comm.rank())] + i % 5);
  });
  comm.all_reduce(block.tensor(), block.tensor(), ReduceOp::kSum);
  const int sum = std::accumulate(comm.ranks().begin(), comm.ranks().end(), 0);
  expect_elements<float>(suite, what, block.tensor(),
                         [&](std::int64_t i) { return static_cast<float>(sum + comm.size() * (i % 5)); });
}

}  // namespace

void check_exchanges(Conformance& suite, Communicator& comm) {
  comm.exchange({}, {});
  for (const Place place : kAllPlaces) {
    for (const std::int64_t count : {0, 1, 1000}) check_shift(suite, comm, place, count);
    check_all_pairs(suite, comm, place, 37);
    check_chain(suite, comm, place);
    if (suite.quick()) continue;
    check_shift(suite, comm, place, 300'001);
    check_all_pairs(suite, comm, place, 7'001);
  }
}

void check_groups(Conformance& suite) {
  World& world = suite.world();
  const int half = world.rank() % 2;
  std::vector<int> members;
  for (int rank = half; rank < world.size(); rank += 2) members.push_back(rank);
  const auto split = world.group("split", members);
  suite.expect(split->ranks() == members && split->rank() == world.rank() / 2, "the ranks of a sub-group");
  // The halves do unlike numbers of unlike things.
  for (int round = 0; round < 3 + 2 * half; ++round) {
    check_sum(suite, *split, 100 + 1000 * half + round, "sub-group");
    split->barrier();
  }
  // Backwards, and alone.
  const std::vector<int> reversed(members.rbegin(), members.rend());
  const auto backwards = world.group("split", reversed);
  suite.expect(backwards->rank() == split->size() - 1 - split->rank(), "the ranks of a reversed group");
  check_sum(suite, *backwards, 10, "reversed group");
  check_sum(suite, *world.group("alone", {world.rank()}), 10, "group of one");
  // Two groups of one name, each used by its own thread, at any speed.
  const auto first = world.everyone("twin");
  const auto second = world.everyone("twin");
  Conformance beside(world, Extent::kQuick);
  std::thread thread([&] {
    try {
      for (int i = 0; i < 40; ++i) check_sum(beside, *second, 3 + 100 * (i % 3), "twin group on a thread");
    } catch (const std::exception& e) {
      beside.fail(e.what());
    }
  });
  try {
    for (int i = 0; i < 25; ++i) check_sum(suite, *first, 5000, "twin group");
  } catch (const std::exception& e) {
    suite.fail(e.what());
  }
  thread.join();
  for (const std::string& failure : beside.failures()) suite.fail(failure);
}

void check_queues(Conformance& suite) {
  World& world = suite.world();
  const auto behind = world.everyone("behind");
  const auto beside = world.everyone("beside");
  for (const bool background : {false, true}) {
    constexpr int kJobs = 20;
    std::vector<Block> blocks;
    for (int job = 0; job < kJobs; ++job) {
      blocks.emplace_back(suite, Place::kMixed, DType::kF32, 10 + 500 * (job % 2));
      fill_elements<float>(blocks.back().tensor(), [&](std::int64_t) { return static_cast<float>(job); });
    }
    CommQueue queue(suite.device(), background);
    CommQueue::Ticket ticket = 0;
    for (int job = 0; job < kJobs; ++job) {
      const Tensor data = blocks[static_cast<std::size_t>(job)].tensor();
      ticket = queue.submit([&, data](Stream&) { behind->all_reduce(data, data, ReduceOp::kSum); });
      if (job % 3 == 0) check_sum(suite, *beside, 200, "beside a queue");
      if (job % 7 == 0) queue.wait(ticket);
    }
    queue.wait(ticket);
    for (int job = 0; job < kJobs; ++job) {
      expect_elements<float>(suite, fmt::format("job {} of a queue", job),
                             blocks[static_cast<std::size_t>(job)].tensor(),
                             [&](std::int64_t) { return static_cast<float>(job * world.size()); });
    }
  }
}

// Against the formulas of ring algorithms, counted by hand: each rank's share is sent K - 1 times.
void check_stats(Conformance& suite) {
  World& world = suite.world();
  const auto comm = world.everyone("stats");
  const std::int64_t ranks = world.size();
  const std::int64_t count = 60 * ranks;
  const Block all(suite, Place::kDevice, DType::kF32, count);
  const Block other(suite, Place::kDevice, DType::kF32, count);
  const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), 60);
  comm->all_reduce(all.tensor(), all.tensor(), ReduceOp::kSum, Traffic::kGradients);
  comm->reduce_scatter(all.tensor(), all.piece(60 * world.rank(), 60), ReduceOp::kSum, Traffic::kGradients);
  comm->all_gather(all.piece(60 * world.rank(), 60), all.tensor(), Traffic::kParameters);
  comm->all_to_all(all.tensor(), even, other.tensor(), even, Traffic::kEvaluation);
  comm->broadcast(all.tensor(), 0, Traffic::kOther);
  comm->barrier();
  const std::int64_t pass = 60 * 4 * (ranks - 1);
  const CommStats& stats = comm->stats();
  suite.expect(stats.sent_for(Traffic::kGradients) == 3 * pass, "bytes of all-reduce and reduce-scatter");
  suite.expect(stats.sent_for(Traffic::kParameters) == pass, "bytes of all-gather");
  suite.expect(stats.sent_for(Traffic::kEvaluation) == pass, "bytes of all-to-all");
  const bool last = world.rank() == world.size() - 1;
  suite.expect(stats.sent_for(Traffic::kOther) == (last ? 0 : count * 4), "bytes of broadcast");
  suite.expect(stats.sent_for(Traffic::kControl) == 0, "bytes of a barrier");
  const std::array<std::int64_t, kTrafficKinds> calls = {2, 1, 0, 0, 1, 1, 1};
  suite.expect(stats.calls == calls, "numbers of calls");
  Messages messages(suite, *comm, Place::kDevice);
  messages.send((world.rank() + 1) % world.size(), 0, 10);
  messages.receive((world.rank() + world.size() - 1) % world.size(), 0, 10);
  messages.exchange("stats");
  suite.expect(comm->stats().sent_for(Traffic::kControl) == (ranks == 1 ? 0 : 40), "bytes of an exchange");
}

}  // namespace meshtrain::testing
