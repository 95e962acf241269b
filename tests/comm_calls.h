// What the tests of faults do with a world.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/world.h"

namespace meshtrain::testing {

using Lines = std::vector<std::string>;

// One call of each collective on `count` floats a rank. In the exchange everybody talks to everybody.
class Calls {
 public:
  Calls(World& world, Communicator& comm, std::int64_t count)
      : comm_(comm), count_(count), device_(world.make_device()) {
    const std::int64_t bytes = 2 * count * comm.size() * 4;
    buffer_ = device_->allocate(bytes, MemoryCategory::kCommunication);
  }

  void run(CommOp op) {
    const std::int64_t all = count_ * comm_.size();
    const std::vector<std::int64_t> even(static_cast<std::size_t>(comm_.size()), count_);
    switch (op) {
      case CommOp::kBarrier:
        return comm_.barrier();
      case CommOp::kBroadcast:
        return comm_.broadcast(at(0, count_), 0);
      case CommOp::kAllReduce:
        return comm_.all_reduce(at(0, count_), at(all, count_), ReduceOp::kSum);
      case CommOp::kReduceScatter:
        return comm_.reduce_scatter(at(0, all), at(all, count_), ReduceOp::kSum);
      case CommOp::kAllGather:
        return comm_.all_gather(at(all, count_), at(0, all));
      case CommOp::kAllToAll:
        return comm_.all_to_all(at(0, all), even, at(all, all), even);
      case CommOp::kExchange: {
        std::vector<Transfer> sends, receives;
        for (int peer = 0; peer < comm_.size(); ++peer) {
          sends.push_back({peer, at(peer * count_, count_)});
          receives.push_back({peer, at(all + peer * count_, count_)});
        }
        return comm_.exchange(sends, receives);
      }
    }
  }

 private:
  Tensor at(std::int64_t begin, std::int64_t count) const {
    return tensor_in(buffer_, begin * 4, DType::kF32, {count});
  }

  Communicator& comm_;
  std::int64_t count_;
  std::unique_ptr<Device> device_;
  Buffer buffer_;
};

inline constexpr std::array<CommOp, 7> kAllOps = {
    CommOp::kBarrier,   CommOp::kBroadcast, CommOp::kAllReduce, CommOp::kReduceScatter,
    CommOp::kAllGather, CommOp::kAllToAll,  CommOp::kExchange};

inline std::vector<int> all_of(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// One line, which has all these parts.
inline void expect_contains(const Lines& lines, const std::vector<std::string>& parts) {
  ASSERT_EQ(lines.size(), 1U);
  for (const std::string& part : parts) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << "no \"" << part << "\" in: " << lines[0];
  }
}

}  // namespace meshtrain::testing
