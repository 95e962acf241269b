// The templates of ShmCommunicator.
#pragma once

#include <algorithm>

#include "comm/shm/communicator.h"

namespace meshtrain::shm {

template <class Tasks>
void ShmCommunicator::share(const Tasks& tasks) {
  const std::uint32_t parity = round_ & 1U;
  std::uint32_t total = 0;
  std::uint32_t mine = 0;
  for (int i = 0; i < size(); ++i) {
    const int slice = (rank() + i) % size();
    const auto count = static_cast<std::uint32_t>(tasks.count(slice));
    total += count;
    if (i > 0 && !tasks.reachable(slice)) continue;
    std::atomic<std::uint32_t>& claimed = block_.progress(slice).claimed[parity];
    while (claimed.load(std::memory_order_relaxed) < count) {
      const std::uint32_t task = claimed.fetch_add(1, std::memory_order_relaxed);
      if (task >= count) break;
      tasks.run(slice, static_cast<std::int64_t>(task));
      ++mine;
    }
  }
  finish(mine, total);
}

template <class Longest, class Body>
void ShmCommunicator::in_rounds(const Pieces& in, const Tensor& out, const Longest& longest, const Body& body) {
  const auto pieces = static_cast<std::int64_t>(in.offsets.size()) - 1;
  const std::uint64_t in_address = area_->publish(in.data, in.offsets.back() * in.element);
  const std::uint64_t out_address = area_->publish(out.raw(), out.bytes());
  Range range{.step = kStagingBytes / (pieces * in.element), .element = in.element};
  std::int64_t all = 0;
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
}

}  // namespace meshtrain::shm
