// Messages between two ranks: the sender posts where a message lies, or a chunk of it in staging; the
// receiver copies and says so. Each rank goes round its peers until all is sent and received, so that any
// pattern of messages gets through; it sleeps on its doorbell, which peers ring at each post and taking.
#include <cstring>

#include "comm/shm/communicator.h"

namespace meshtrain::shm {

namespace {

constexpr std::uint32_t kPosts = 2;

// The messages to or from one peer, in order.
struct Lane {
  int peer = 0;
  std::vector<const Tensor*> messages;
  std::size_t next = 0;     // message
  std::int64_t offset = 0;  // bytes of it that are through
};

}  // namespace

class ShmCommunicator::Exchange final : public Watch {
 public:
  Exchange(ShmCommunicator& comm, std::span<const Transfer> sends, std::span<const Transfer> receives)
      : comm_(comm), block_(comm.block_), area_(*comm.area_) {
    sort(sends, sends_);
    sort(receives, receives_);
  }

  void run() {
    copy_to_self();
    const auto moved = [this] {
      bool any = false;
      for (Lane& lane : sends_) any |= post(lane);
      for (Lane& lane : receives_) any |= take(lane);
      return any || done();
    };
    while (!done())
      wait_for(area_, block_.doorbell(comm_.rank()), comm_.patience_, comm_.deadline_, *this, moved);
  }

  std::string operation() const override {
    return fmt::format("exchange (number {} of rank {}, of group \"{}\", {})", comm_.exchanges_,
                       world(comm_.rank()), comm_.name(), text_of(comm_.ranks()));
  }
  int this_rank() const override { return world(comm_.rank()); }
  std::vector<int> missing() const override {
    std::vector<int> peers;
    for (const Lane& lane : sends_) {
      if (!is_sent(lane)) peers.push_back(world(lane.peer));
    }
    for (const Lane& lane : receives_) {
      if (!is_received(lane)) peers.push_back(world(lane.peer));
    }
    return peers;
  }
  std::string standing() const override {
    std::string text;
    for (const Lane& lane : receives_) {
      if (!is_received(lane)) text += fmt::format("; rank {} had not sent {}", world(lane.peer), message(lane));
    }
    for (const Lane& lane : sends_) {
      if (!is_sent(lane)) text += fmt::format("; rank {} had not received {}", world(lane.peer), message(lane));
    }
    return text.substr(std::min<std::size_t>(2, text.size()));
  }

 private:
  void sort(std::span<const Transfer> transfers, std::vector<Lane>& lanes) const {
    for (const Transfer& transfer : transfers) {
      auto lane =
          std::find_if(lanes.begin(), lanes.end(), [&](const Lane& l) { return l.peer == transfer.peer; });
      if (lane == lanes.end()) lane = lanes.insert(lane, Lane{transfer.peer, {}});
      lane->messages.push_back(&transfer.data);
    }
  }

  void copy_to_self() {
    const auto own = [&](std::vector<Lane>& lanes) {
      const auto lane =
          std::find_if(lanes.begin(), lanes.end(), [&](const Lane& l) { return l.peer == comm_.rank(); });
      if (lane == lanes.end()) return Lane{};
      Lane found = *lane;
      lanes.erase(lane);
      return found;
    };
    const Lane sent = own(sends_);
    const Lane received = own(receives_);
    check(sent.messages.size() == received.messages.size(), "an exchange receives what it sends to itself");
    for (std::size_t m = 0; m < sent.messages.size(); ++m) {
      const Tensor& from = *sent.messages[m];
      const Tensor& to = *received.messages[m];
      check(from.dtype() == to.dtype() && from.numel() == to.numel(), "a message to oneself of two lengths");
      if (from.bytes() > 0) std::memmove(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    }
  }

  bool post(Lane& lane) {
    bool moved = false;
    for (Mailbox& box = block_.mailbox(comm_.rank(), lane.peer); lane.next < lane.messages.size();
         moved = true) {
      const std::uint32_t posted = box.posted.load(std::memory_order_relaxed);
      if (posted - box.taken.load() == kPosts) break;
      const Tensor& data = *lane.messages[lane.next];
      const auto* from = static_cast<const std::byte*>(data.raw()) + lane.offset;
      Post& entry = box.posts[posted % kPosts];
      entry = {.dtype = data.dtype(),
               .message_bytes = data.bytes(),
               .chunk_bytes = data.bytes(),
               .address = area_.publish(data.raw(), data.bytes())};
      if (entry.address == Area::kStaged) {
        entry.chunk_bytes = std::min(data.bytes() - lane.offset, block_.pair_chunk());
        std::memcpy(block_.pair_staging(comm_.rank(), lane.peer, posted % kPosts), from,
                    static_cast<std::size_t>(entry.chunk_bytes));
      }
      advance(lane, entry.chunk_bytes);
      box.posted.store(posted + 1);
      ring_at(lane.peer);
    }
    return moved;
  }

  bool take(Lane& lane) {
    bool moved = false;
    for (Mailbox& box = block_.mailbox(lane.peer, comm_.rank()); lane.next < lane.messages.size();
         moved = true) {
      const std::uint32_t taken = box.taken.load(std::memory_order_relaxed);
      if (box.posted.load() == taken) break;
      const Post& entry = box.posts[taken % kPosts];
      const Tensor& data = *lane.messages[lane.next];
      if (entry.dtype != data.dtype() || entry.message_bytes != data.bytes()) fail_unlike(lane, entry);
      const std::byte* from = entry.address == Area::kStaged
                                  ? block_.pair_staging(lane.peer, comm_.rank(), taken % kPosts)
                                  : area_.resolve(entry.address);
      if (entry.chunk_bytes > 0) {
        const Touching touching(comm_);
        if (!touching.allowed()) area_.throw_if_failed();
        std::memcpy(static_cast<std::byte*>(data.raw()) + lane.offset, from,
                    static_cast<std::size_t>(entry.chunk_bytes));
      }
      advance(lane, entry.chunk_bytes);
      box.taken.store(taken + 1);
      ring_at(lane.peer);
    }
    return moved;
  }

  static void advance(Lane& lane, std::int64_t bytes) {
    lane.offset += bytes;
    if (lane.offset < lane.messages[lane.next]->bytes()) return;
    ++lane.next;
    lane.offset = 0;
  }

  void ring_at(int peer) const {
    ring_if(block_.doorbell(peer), [] { return true; });
  }

  bool is_sent(const Lane& lane) const {
    const Mailbox& box = block_.mailbox(comm_.rank(), lane.peer);
    return lane.next == lane.messages.size() && box.taken.load() == box.posted.load(std::memory_order_relaxed);
  }
  static bool is_received(const Lane& lane) { return lane.next == lane.messages.size(); }
  bool done() const {
    return std::all_of(receives_.begin(), receives_.end(), is_received) &&
           std::all_of(sends_.begin(), sends_.end(), [this](const Lane& lane) { return is_sent(lane); });
  }

  [[noreturn]] void fail_unlike(const Lane& lane, const Post& entry) {
    const Tensor& data = *lane.messages[lane.next];
    area_.fail_and_throw(fmt::format("{}: rank {} sends {} {} to rank {}, which expects {} {}", operation(),
                                     world(lane.peer), entry.message_bytes / size_of(entry.dtype),
                                     name_of(entry.dtype), world(comm_.rank()), data.numel(),
                                     name_of(data.dtype())));
  }

  int world(int rank) const { return comm_.ranks()[static_cast<std::size_t>(rank)]; }
  // The first message that is not through.
  static std::string message(const Lane& lane) {
    const std::size_t number = std::min(lane.next, lane.messages.size() - 1);
    const Tensor& data = *lane.messages[number];
    return fmt::format("message {} of {} ({} {})", number + 1, lane.messages.size(), data.numel(),
                       name_of(data.dtype()));
  }

  ShmCommunicator& comm_;
  const GroupBlock& block_;
  Area& area_;
  std::vector<Lane> sends_, receives_;
};

void ShmCommunicator::do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  area_->throw_if_failed();
  ++exchanges_;
  try {
    Exchange(*this, sends, receives).run();
  } catch (const std::exception& e) {
    area_->fail(e.what());
    await_quiet();
    throw;
  }
}

}  // namespace meshtrain::shm
