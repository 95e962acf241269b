// One rank of a run over MPI in which something goes wrong: mpirun -n 3 comm_mpi_faults CASE DEADLINE_MS
// RANK... . What it catches goes to the file rank-N of the current folder, and its exit status is 1. The first
// to end takes the others with it, so a rank waits until all that are named have such a file.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/engines.h"
#include "comm_calls.h"

namespace meshtrain {
namespace {

using Messages = std::vector<Transfer>;

class Rank {
 public:
  Rank(World& world, Communicator& all) : world_(world), all_(all), data_(kFloats) {}

  bool odd_one() const { return world_.rank() == 1; }
  Communicator& all() { return all_; }
  World& world() { return world_; }
  Tensor floats(std::int64_t count) { return {data_.data(), DType::kF32, {count}}; }
  Tensor more_floats(std::int64_t count) { return {data_.data() + kFloats / 2, DType::kF32, {count}}; }
  Tensor halves(std::int64_t count) { return {data_.data(), DType::kBF16, {count}}; }

 private:
  static constexpr std::int64_t kFloats = 1 << 20;
  World& world_;
  Communicator& all_;
  std::vector<float> data_;
};

void all_reduce(Rank& rank, std::int64_t count, ReduceOp op = ReduceOp::kSum) {
  rank.all().all_reduce(rank.floats(count), rank.floats(count), op);
}

void all_to_all(Rank& rank) {
  const bool odd = rank.odd_one();  // sends one element to rank 2 where two are expected
  const std::vector<std::int64_t> to =
      odd ? std::vector<std::int64_t>{2, 2, 1} : std::vector<std::int64_t>{2, 2, 2};
  rank.all().all_to_all(rank.floats(odd ? 5 : 6), to, rank.more_floats(6), std::vector<std::int64_t>{2, 2, 2});
}

void exchange(Rank& rank) {
  if (rank.world().rank() == 0) rank.all().exchange(Messages{{1, rank.floats(100)}}, {});
  if (rank.world().rank() == 1) rank.all().exchange({}, Messages{{0, rank.floats(99)}});
  rank.all().barrier();
}

const std::map<std::string, void (*)(Rank&)> kCases = {
    {"barrier", [](Rank& r) { r.odd_one() ? all_reduce(r, 5) : r.all().barrier(); }},
    {"broadcast", [](Rank& r) { r.all().broadcast(r.floats(8), r.odd_one() ? 2 : 0); }},
    {"all-reduce", [](Rank& r) { all_reduce(r, 300'000, r.odd_one() ? ReduceOp::kMax : ReduceOp::kSum); }},
    {"all-reduce-size", [](Rank& r) { all_reduce(r, r.odd_one() ? 300'000 : 3); }},
    {"reduce-scatter",
     [](Rank& r) {
       r.odd_one() ? r.all().reduce_scatter(r.halves(12), r.halves(12).slice(0, 4, 4), ReduceOp::kSum)
                   : r.all().reduce_scatter(r.floats(12), r.more_floats(4), ReduceOp::kSum);
     }},
    {"all-gather",
     [](Rank& r) { r.all().all_gather(r.floats(r.odd_one() ? 7 : 8), r.more_floats(r.odd_one() ? 21 : 24)); }},
    {"all-to-all", all_to_all},
    {"exchange", exchange},
    {"exchange-collective",
     [](Rank& r) {
       if (r.odd_one()) r.all().exchange(Messages{{0, r.floats(3)}, {2, r.floats(3)}}, {});
       r.all().barrier();
     }},
    {"stop",
     [](Rank& r) {
       if (r.odd_one()) std::raise(SIGSTOP);
       all_reduce(r, 12);
     }},
    {"kill",
     [](Rank& r) {
       if (r.odd_one()) std::raise(SIGKILL);
       all_reduce(r, 12);
     }},
    {"exit",
     [](Rank& r) {
       if (r.odd_one()) std::exit(7);
       all_reduce(r, 12);
     }},
    {"leave",
     [](Rank& r) {
       if (!r.odd_one()) all_reduce(r, 12);
     }},
    {"abort",
     [](Rank& r) {
       if (r.odd_one()) r.world().abort("the disk is full");
       all_reduce(r, 12);
     }},
    {"group",
     [](Rank& r) {
       if (r.odd_one()) std::raise(SIGSTOP);
       r.world().group("late", r.all().ranks());
     }},
    // After an error nothing else works, and says why.
    {"afterwards",
     [](Rank& r) {
       const auto other = r.world().group("other", r.all().ranks());
       try {
         all_reduce(r, r.odd_one() ? 4 : 5);
       } catch (const CommError&) {
         other->barrier();
       }
     }},
};

std::string file_of(const std::string& rank) {
  return "rank-" + rank;
}

// Whole at once, for those who look for it.
void write_error(const std::string& rank, const std::string& text) {
  const std::string unfinished = "unfinished-" + rank;
  std::ofstream(unfinished) << text;
  std::filesystem::rename(unfinished, file_of(rank));
}

void wait_for_errors(const std::vector<std::string>& ranks) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto all_there = [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const std::string& rank) { return std::filesystem::exists(file_of(rank)); });
  };
  while (!all_there() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

CommOp op_of(std::string_view name) {
  return *std::find_if(testing::kAllOps.begin(), testing::kAllOps.end(),
                       [&](CommOp op) { return name_of(op) == name; });
}

// "A/B": the odd one calls B, the others A.
void call_either(Rank& rank, std::string_view name) {
  const std::size_t slash = name.find('/');
  const CommOp op = op_of(rank.odd_one() ? name.substr(slash + 1) : name.substr(0, slash));
  testing::Calls(rank.world(), rank.all(), 7).run(op);
}

int run(const std::string& name, const WorldOptions& options,
        const std::vector<std::string>& ranks_with_errors) {
  const auto world = make_mpi_world(name == "expected" ? 5 : 0, options);
  try {
    std::vector<int> ranks(static_cast<std::size_t>(world->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto all = world->group("all", ranks);
    Rank rank(*world, *all);
    name.find('/') == std::string::npos ? kCases.at(name)(rank) : call_either(rank, name);
    return 0;
  } catch (const CommError& error) {
    write_error(std::to_string(world->rank()), error.what());
    wait_for_errors(ranks_with_errors);
    return 1;
  }
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  try {
    return meshtrain::run(argv[1], {.deadline = std::chrono::milliseconds(std::atoi(argv[2]))},
                          {argv + 3, argv + argc});
  } catch (const meshtrain::UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
