// Device memory for what micro-batches leave between the actions of a stage. All pieces share it: a forward
// pass takes slots for its blocks, and one for the head; a backward pass in two parts takes one for what the
// second part needs. A slot is free again when its micro-batch is done with it.
//
// Blocks of a model leave equally much, so a slot has room for as many as divide the blocks of every piece:
// where pieces are of one size, a piece. No layout is smaller, but for what the head adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "model/piece.h"
#include "pipeline/schedule.h"

namespace meshtrain {

// Slots of each kind that are taken at once, at most.
struct SlotCounts {
  std::int64_t blocks_in_slot = 1;
  std::int64_t blocks = 0;
  std::int64_t head = 0;
  std::int64_t split = 0;  // between the two parts of a backward pass
};
// `pieces`: the stage's, by chunk of the order.
SlotCounts slots_for(const std::vector<PipelineAction>& order, const std::vector<ModelPiece>& pieces);

// Bytes of one slot of each kind, and of what else uses the memory while no slot is taken.
struct SlotBytes {
  std::int64_t blocks = 0;
  std::int64_t head = 0;
  std::int64_t split = 0;
  std::int64_t whole = 0;
  std::int64_t of_all(const SlotCounts& counts) const {
    return counts.blocks * blocks + counts.head * head + counts.split * split;
  }
};

class ActivationSlots {
  struct Kind;

 public:
  // Without bytes the slots only measure.
  ActivationSlots(Device& device, const SlotCounts& counts, const std::optional<SlotBytes>& bytes);
  ActivationSlots(const ActivationSlots&) = delete;
  ActivationSlots& operator=(const ActivationSlots&) = delete;

  // Slots that are taken until it goes; they outlive it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : taken_(std::exchange(other.taken_, {})) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(taken_, other.taken_);
      return *this;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease();

    Arena& operator[](std::size_t slot) const { return taken_[slot].kind->slots[taken_[slot].index]; }
    // Null where it has none.
    Arena* first() const { return taken_.empty() ? nullptr : &(*this)[0]; }

   private:
    friend class ActivationSlots;
    struct Slot {
      Kind* kind = nullptr;
      std::size_t index = 0;
    };
    std::vector<Slot> taken_;
  };
  // For a forward pass: of its blocks in their order, then of its head. Throws std::logic_error where they are
  // not free: the order is not the planned one.
  Lease take(const ModelPiece& piece);
  // The same as an arena for each block and the head.
  std::vector<Arena*> arenas(const ModelPiece& piece, const Lease& lease) const;
  // For a backward pass in two parts.
  Lease take_split();

  // All of the memory, for use while no slot is taken.
  Arena& whole();

  // As far as slots were filled so far.
  SlotBytes peaks() const;
  // The same, of all slots together, and their size.
  std::int64_t filled() const;
  std::int64_t capacity() const { return memory_.bytes(); }

 private:
  struct Kind {
    std::vector<Arena> slots;
    std::set<std::size_t> free;
  };
  static void take_lowest(Kind& kind, std::int64_t count, Lease& lease);

  Buffer memory_;
  std::int64_t blocks_in_slot_;
  Kind blocks_, head_, split_;
  Arena whole_;
};

}  // namespace meshtrain
