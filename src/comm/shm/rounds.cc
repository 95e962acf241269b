#include "comm/shm/rounds.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace meshtrain::shm {

// Waits for ranks to arrive at this round, or to be done with it.
class ShmCommunicator::RoundWatch final : public Watch {
 public:
  enum class For : std::uint8_t { kArrivals, kCompletion };
  RoundWatch(const ShmCommunicator& comm, For what) : comm_(comm), for_(what) {}
  std::string operation() const override { return comm_.operation(); }
  int this_rank() const override { return comm_.ranks()[static_cast<std::size_t>(comm_.rank())]; }
  std::vector<int> missing() const override {
    return for_ == For::kArrivals ? comm_.not_arrived() : comm_.not_done();
  }
  std::string standing() const override {
    const std::vector<int> late = missing();
    if (for_ == For::kCompletion) {
      return fmt::format("all had arrived, but {} had not done their part", text_of(late));
    }
    std::vector<int> there;
    for (const int rank : comm_.ranks()) {
      if (std::find(late.begin(), late.end(), rank) == late.end()) there.push_back(rank);
    }
    return fmt::format("{} had arrived, {} had not", text_of(there), text_of(late));
  }

 private:
  const ShmCommunicator& comm_;
  For for_;
};

ShmCommunicator::ShmCommunicator(std::shared_ptr<Area> area, std::uint64_t offset, std::string name,
                                 std::vector<int> ranks, int rank, const WorldOptions& options)
    : Communicator(std::move(name), std::move(ranks), rank),
      area_(std::move(area)),
      offset_(offset),
      block_(area_->at(offset), size()),
      patience_(Patience::of(*area_)),
      deadline_(options.deadline),
      in_(static_cast<std::size_t>(size())),
      task_in_(in_.size()),
      task_out_(in_.size()) {
  block_.header().ranks.store(size());
  meet(0, 0, {});
  // More ranks may have joined meanwhile.
  patience_ = Patience::of(*area_);
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

std::vector<int> ShmCommunicator::not_arrived() const {
  std::vector<int> found;
  for (int k = 0; k < size(); ++k) {
    if (!arrived(k)) found.push_back(ranks()[static_cast<std::size_t>(k)]);
  }
  return found;
}

std::vector<int> ShmCommunicator::not_done() const {
  std::vector<int> found;
  for (int k = 0; k < size(); ++k) {
    const Progress& progress = block_.progress(k);
    const bool done = RoundCount::round_of(progress.done.value.load()) == round_ && progress.busy.load() == 0;
    if (!done) found.push_back(ranks()[static_cast<std::size_t>(k)]);
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
  Publication& mine = block_.publication(rank(), round_ & 1U);
  mine.call = call_;
  mine.in = in;
  mine.out = out;
  if (!data.empty()) std::memcpy(mine.data.data(), data.data(), data.size());
  block_.progress(rank()).claimed.value.store(RoundCount::pack(round_, 0), std::memory_order_relaxed);
  mine.round.store(round_);
  int next = 0;  // the first that may not have arrived
  const auto all_arrived = [&] {
    while (next < size() && arrived(next)) ++next;
    return next == size();
  };
  Bell& arrivals = block_.header().arrivals;
  ring_if(arrivals, all_arrived);
  wait_for(*area_, arrivals, patience_, deadline_, RoundWatch(*this, RoundWatch::For::kArrivals), all_arrived);
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
  for (const auto& [call, callers] : calls) {
    text += fmt::format(" {} called {};", text_of(callers), to_string(call));
  }
  text.pop_back();
  area_->fail_and_throw(text);
}

std::uint32_t ShmCommunicator::claim(int slice, std::uint32_t count) const {
  std::atomic<std::uint64_t>& claimed = block_.progress(slice).claimed.value;
  std::uint64_t seen = claimed.load();
  for (;;) {
    // Its rank may be at the next round already: then this one is complete.
    if (RoundCount::round_of(seen) != round_ || RoundCount::count_of(seen) >= count) return count;
    if (claimed.compare_exchange_weak(seen, seen + 1)) return RoundCount::count_of(seen);
  }
}

bool ShmCommunicator::complete(std::uint32_t tasks) const {
  for (int k = 0; k < size(); ++k) {
    const std::uint64_t done = block_.progress(k).done.value.load();
    if (RoundCount::round_of(done) == round_) tasks -= RoundCount::count_of(done);
  }
  return tasks == 0;
}

void ShmCommunicator::report_done(std::uint32_t mine, std::uint32_t tasks) {
  block_.progress(rank()).done.value.store(RoundCount::pack(round_, mine));
  ring_if(block_.header().completion, [&] { return complete(tasks); });
}

void ShmCommunicator::wait_until_complete(std::uint32_t tasks) {
  wait_for(*area_, block_.header().completion, patience_, deadline_,
           RoundWatch(*this, RoundWatch::For::kCompletion), [&] { return complete(tasks); });
}

void ShmCommunicator::await_quiet() const {
  // A process's tensors stay mapped, and another process may be dead with its mark set.
  if (!area_->of_threads()) return;
  for (int k = 0; k < size(); ++k) {
    while (block_.progress(k).busy.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
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
