#include "comm/shm/rounds.h"

#include <cstring>
#include <utility>

namespace meshtrain::shm {

// Waits for ranks to arrive at this round, or to finish it.
class ShmCommunicator::RoundWatch final : public Watch {
 public:
  RoundWatch(const ShmCommunicator& comm, std::atomic<std::uint32_t> Progress::*counter)
      : comm_(comm), counter_(counter) {}
  std::string operation() const override { return comm_.operation(); }
  std::vector<int> missing() const override {
    std::vector<int> late = comm_.world_ranks_where(false, counter_);
    // One may die between its mark and its count.
    return late.empty() ? comm_.ranks() : late;
  }
  std::string standing() const override {
    const std::vector<int> late = comm_.world_ranks_where(false, counter_);
    const std::vector<int> there = comm_.world_ranks_where(true, counter_);
    if (counter_ == &Progress::arrived)
      return fmt::format("{} had arrived, {} had not", text_of(there), text_of(late));
    return fmt::format("all had arrived, but {} had not done their part", text_of(late));
  }

 private:
  const ShmCommunicator& comm_;
  std::atomic<std::uint32_t> Progress::*counter_;
};

ShmCommunicator::ShmCommunicator(std::shared_ptr<Area> area, std::uint64_t offset, std::string name,
                                 std::vector<int> ranks, int rank, Patience patience,
                                 const WorldOptions& options)
    : Communicator(std::move(name), std::move(ranks), rank),
      area_(std::move(area)),
      offset_(offset),
      block_(area_->at(offset), size()),
      patience_(patience),
      deadline_(options.deadline),
      in_(static_cast<std::size_t>(size())),
      task_in_(in_.size()),
      task_out_(in_.size()) {
  block_.header().ranks.store(size());
  meet(0, 0, {});
}

ShmCommunicator::~ShmCommunicator() {
  const auto all = static_cast<std::uint32_t>(size());
  if (block_.header().departed.fetch_add(1) + 1 == all) {
    area_->discard(offset_, GroupBlock::bytes(size(), !area_->of_threads()));
  }
}

std::string ShmCommunicator::operation() const {
  if (operations_ == 0) return fmt::format("the making of group \"{}\" ({})", name(), text_of(ranks()));
  return fmt::format("{} (operation {} of group \"{}\", {})", to_string(call_), operations_, name(),
                     text_of(ranks()));
}

std::vector<int> ShmCommunicator::world_ranks_where(bool holds,
                                                    std::atomic<std::uint32_t> Progress::*counter) const {
  std::vector<int> found;
  for (int k = 0; k < size(); ++k) {
    const bool reached = (block_.progress(k).*counter).load() == round_;
    if (reached == holds) found.push_back(ranks()[static_cast<std::size_t>(k)]);
  }
  return found;
}

void ShmCommunicator::begin_operation(const CommCall& call) {
  area_->throw_if_failed();
  call_ = call;
  ++operations_;
}

void ShmCommunicator::meet(std::uint64_t in, std::uint64_t out, std::span<const std::byte> data) {
  ++round_;
  const std::uint32_t parity = round_ & 1U;
  Publication& mine = block_.publication(rank(), parity);
  mine.call = call_;
  mine.in = in;
  mine.out = out;
  if (!data.empty()) std::memcpy(mine.data.data(), data.data(), data.size());
  Progress& progress = block_.progress(rank());
  progress.claimed[parity].store(0, std::memory_order_relaxed);
  if (rank() == 0) block_.header().done[parity].tasks.word.store(0, std::memory_order_relaxed);
  progress.arrived.store(round_, std::memory_order_relaxed);
  Bell& arrivals = block_.header().arrivals;
  const std::uint32_t all = round_ * static_cast<std::uint32_t>(size());  // wraps as the counter does
  if (arrivals.word.fetch_add(1) + 1 == all) {
    ring(arrivals);
  } else {
    wait_for(*area_, arrivals, patience_, deadline_, RoundWatch(*this, &Progress::arrived), [&] {
      return static_cast<std::int32_t>(arrivals.word.load(std::memory_order_acquire) - all) >= 0;
    });
  }
  check_calls();
}

void ShmCommunicator::check_calls() {
  bool same = true;
  for (int k = 0; k < size(); ++k) same &= of(k).call == call_;
  if (same) return;
  std::vector<std::pair<CommCall, std::vector<int>>> calls;
  for (int k = 0; k < size(); ++k) {
    const auto known =
        std::find_if(calls.begin(), calls.end(), [&](const auto& c) { return c.first == of(k).call; });
    auto& entry = known == calls.end() ? calls.emplace_back(of(k).call, std::vector<int>()) : *known;
    entry.second.push_back(ranks()[static_cast<std::size_t>(k)]);
  }
  std::string text = fmt::format("the ranks of group \"{}\" differ in operation {}:", name(), operations_);
  for (const auto& [call, callers] : calls)
    text += fmt::format(" {} called {};", text_of(callers), to_string(call));
  text.pop_back();
  area_->fail_and_throw(text);
}

void ShmCommunicator::finish(std::uint32_t tasks_done, std::uint32_t tasks) {
  block_.progress(rank()).finished.store(round_, std::memory_order_relaxed);
  Bell& done = block_.header().done[round_ & 1U].tasks;
  if (tasks_done > 0 && done.word.fetch_add(tasks_done) + tasks_done == tasks) return ring(done);
  wait_for(*area_, done, patience_, deadline_, RoundWatch(*this, &Progress::finished),
           [&] { return done.word.load(std::memory_order_acquire) == tasks; });
}

void ShmCommunicator::stage(const Pieces& in, const Range& range) {
  for (std::size_t p = 0; p + 1 < in.offsets.size(); ++p) {
    const std::int64_t length = in.offsets[p + 1] - in.offsets[p];
    const std::int64_t end = std::min(length, range.end);
    if (end <= range.begin) continue;
    std::memcpy(block_.staging(rank()) + static_cast<std::int64_t>(p) * range.step * range.element,
                in.data + (in.offsets[p] + range.begin) * range.element,
                static_cast<std::size_t>((end - range.begin) * range.element));
  }
}

const std::byte* ShmCommunicator::source(int rank, int piece, std::int64_t offset, const Range& range) const {
  const std::uint64_t address = of(rank).in;
  if (address == Area::kStaged) return block_.staging(rank) + piece * range.step * range.element;
  return area_->resolve(address) + (offset + range.begin) * range.element;
}

std::byte* ShmCommunicator::output_of(int rank) const {
  return of(rank).out == Area::kStaged ? nullptr : area_->resolve(of(rank).out);
}

}  // namespace meshtrain::shm
