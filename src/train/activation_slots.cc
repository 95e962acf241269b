#include "train/activation_slots.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace meshtrain {

SlotCounts slots_for(const std::vector<PipelineAction>& order, const std::vector<ModelPiece>& pieces) {
  SlotCounts counts;
  std::int64_t divisor = 0;
  for (const ModelPiece& piece : pieces) divisor = std::gcd(divisor, piece.blocks);
  counts.blocks_in_slot = std::max<std::int64_t>(divisor, 1);
  std::vector<std::int64_t> blocks;
  std::vector<std::int64_t> heads;
  for (const ModelPiece& piece : pieces) {
    blocks.push_back(piece.blocks / counts.blocks_in_slot);
    heads.push_back(piece.head ? 1 : 0);
  }
  counts.blocks = peak_live(order, blocks);
  counts.head = peak_live(order, heads);
  counts.split = peak_split(order);
  return counts;
}

ActivationSlots::ActivationSlots(Device& device, const SlotCounts& counts,
                                 const std::optional<SlotBytes>& bytes)
    : blocks_in_slot_(counts.blocks_in_slot), whole_(Arena::measuring("activations")) {
  if (bytes) {
    memory_ = device.allocate(std::max(bytes->of_all(counts), bytes->whole), MemoryCategory::kActivations);
    whole_ = Arena("activations", memory_.data(), memory_.bytes());
  }
  std::int64_t begin = 0;
  const auto lay_out = [&](Kind& kind, std::int64_t count, std::int64_t size) {
    for (std::int64_t i = 0; i < count; ++i) {
      kind.slots.push_back(bytes ? Arena("activations", memory_.data() + begin, size)
                                 : Arena::measuring("activations"));
      kind.free.insert(kind.free.end(), static_cast<std::size_t>(i));
      begin += size;
    }
  };
  const SlotBytes each = bytes.value_or(SlotBytes{});
  lay_out(blocks_, counts.blocks, each.blocks);
  lay_out(head_, counts.head, each.head);
  lay_out(split_, counts.split, each.split);
}

void ActivationSlots::take_lowest(Kind& kind, std::int64_t count, Lease& lease) {
  if (static_cast<std::int64_t>(kind.free.size()) < count) {
    throw std::logic_error("internal error: more activations are alive than were planned for");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    lease.taken_.push_back({.kind = &kind, .index = *kind.free.begin()});
    kind.free.erase(kind.free.begin());
  }
}

ActivationSlots::Lease ActivationSlots::take(const ModelPiece& piece) {
  Lease lease;
  take_lowest(blocks_, piece.blocks / blocks_in_slot_, lease);
  take_lowest(head_, piece.head ? 1 : 0, lease);
  return lease;
}

std::vector<Arena*> ActivationSlots::arenas(const ModelPiece& piece, const Lease& lease) const {
  std::vector<Arena*> arenas;
  for (std::int64_t block = 0; block < piece.blocks; ++block) {
    arenas.push_back(&lease[static_cast<std::size_t>(block / blocks_in_slot_)]);
  }
  if (piece.head) arenas.push_back(&lease[static_cast<std::size_t>(piece.blocks / blocks_in_slot_)]);
  return arenas;
}

ActivationSlots::Lease ActivationSlots::take_split() {
  Lease lease;
  take_lowest(split_, 1, lease);
  return lease;
}

Arena& ActivationSlots::whole() {
  for (const Kind* kind : {&blocks_, &head_, &split_}) {
    check(kind->free.size() == kind->slots.size(), "slots are taken");
  }
  return whole_;
}

ActivationSlots::Lease::~Lease() {
  for (const Slot& slot : taken_) {
    slot.kind->slots[slot.index].release(0);
    slot.kind->free.insert(slot.index);
  }
}

SlotBytes ActivationSlots::peaks() const {
  const auto most = [](const Kind& kind) {
    std::int64_t bytes = 0;
    for (const Arena& slot : kind.slots) bytes = std::max(bytes, slot.peak());
    return bytes;
  };
  return {.blocks = most(blocks_), .head = most(head_), .split = most(split_), .whole = whole_.peak()};
}

std::int64_t ActivationSlots::filled() const {
  std::int64_t bytes = 0;
  for (const Kind* kind : {&blocks_, &head_, &split_}) {
    for (const Arena& slot : kind->slots) bytes += slot.peak();
  }
  return std::max(bytes, whole_.peak());
}

}  // namespace meshtrain
