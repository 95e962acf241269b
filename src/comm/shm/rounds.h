// The templates of ShmCommunicator.
#pragma once

#include <algorithm>
#include <exception>

#include "comm/shm/communicator.h"

namespace meshtrain::shm {

template <class Tasks>
std::uint32_t ShmCommunicator::do_tasks_of(int slice, std::uint32_t count, const Tasks& tasks) {
  const Touching touching(*this);
  if (!touching.allowed()) return 0;  // whoever waits for completion throws
  std::uint32_t done = 0;
  for (std::uint32_t task = 0; (task = claim(slice, count)) < count; ++done) {
    tasks.run(slice, static_cast<std::int64_t>(task));
  }
  return done;
}

template <class Tasks>
void ShmCommunicator::share(const Tasks& tasks) {
  const auto count = [&](int slice) { return static_cast<std::uint32_t>(tasks.count(slice)); };
  std::uint32_t total = 0;
  for (int k = 0; k < size(); ++k) total += count(k);
  const std::uint32_t mine = do_tasks_of(rank(), count(rank()), tasks);
  report_done(mine, total);
  // Looking for more takes the cache line of a rank that may be about to claim its own.
  for (int i = 0; i < patience_.spins() / 4; ++i) {
    if (complete(total)) return;
    pause_briefly();
  }
  std::uint32_t others = 0;
  for (int i = 1; i < size(); ++i) {
    const int slice = (rank() + i) % size();
    if (tasks.reachable(slice)) others += do_tasks_of(slice, count(slice), tasks);
  }
  if (others > 0) report_done(mine + others, total);
  wait_until_complete(total);
}

template <class Longest, class Body>
void ShmCommunicator::in_rounds(const Pieces& in, const Tensor& out, const Longest& longest, const Body& body) {
  const auto pieces = static_cast<std::int64_t>(in.offsets.size()) - 1;
  const std::uint64_t in_address = area_->publish(in.data, in.offsets.back() * in.element);
  const std::uint64_t out_address = area_->publish(out.raw(), out.bytes());
  Range range{.step = kStagingBytes / (pieces * in.element), .element = in.element};
  std::int64_t all = 0;
  try {
    do {
      range.end = range.begin + range.step;
      if (in_address == Area::kStaged) stage(in, range);
      meet(in_address, out_address, {});
      if (range.begin == 0) all = longest();
      bool staged = false;
      for (int k = 0; k < size(); ++k) {
        staged |= of(k).in == Area::kStaged || (call_.op == CommOp::kAllReduce && of(k).out == Area::kStaged);
      }
      range.end = staged ? std::min(all, range.end) : all;
      body(range);
      range.begin = range.end;
    } while (range.begin < all);
  } catch (const std::exception& e) {
    area_->fail(e.what());
    await_quiet();
    throw;
  }
}

}  // namespace meshtrain::shm
