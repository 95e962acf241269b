// How data-parallel ranks come to one gradient and one set of weights. A strategy sees flat parameter units
// and knows no model; the model knows no strategy, and tells it what it uses through UnitHooks.
//
//   stage  file      each of K ranks keeps                      sends a step (S: bytes of all parameters)
//   0      ddp.cc    everything                                 2 (K-1)/K S     all-reduce of gradients
//   1      zero1.cc  1/K of masters and optimizer state         2 (K-1)/K S     reduce-scatter, all-gather
//   2      zero2.cc  and of gradients                           the same, the first once a micro-step
//   3      zero3.cc  and of weights                             3 (K-1)/K S     a micro-step
// (Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models", sections
// 5 and 7.) Stage 0 reduces in buckets as they fill up during the last backward pass (Li et al. 2020,
// "PyTorch Distributed", section 3.2).
//
// Reductions: kFast adds up a rank's micro-steps in the gradient buffers and reduces over ranks once (stages 0
// and 1), or reduces each micro-step over ranks and adds up the shards (2 and 3). kTree makes micro-batch t of
// rank r the leaf t·K + r of one pairwise tree: the same bits for every stage and every split (leaf_tree.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/comm_queue.h"
#include "comm/communicator.h"
#include "device/arena.h"
#include "params/param_store.h"
#include "params/unit_hooks.h"

namespace meshtrain {

enum class Reduction : std::uint8_t { kFast, kTree };

struct GradSyncOptions {
  int zero = 0;
  Reduction reduction = Reduction::kFast;
  std::int64_t micro_steps = 1;
  std::int64_t bucket_bytes = 0;  // stages 0 and 1 reduce when so many bytes of gradients are ready
  int prefetch = 1;               // stage 3: units gathered ahead of use
  std::optional<std::int64_t> transient_bytes;  // of the pool; nothing: measure (simulated device)
};

// What a strategy lets each rank keep, for ParamStore::allocate.
Sharding sharding_of(int zero, const Communicator& ranks);

class GradSync : public UnitHooks {
 public:
  // --- One step, in this order. ---
  // `acquires`: the units of all acquires of the step, in order; kept until the end of the step. Gradients of a
  // unit are begun and ended once for each of its micro-batches, in their order.
  virtual void begin_step(std::span<const int> acquires) = 0;
  // Before gradients of a micro-batch are written.
  virtual void begin_backward() {}
  // After the last: the store's owned gradients are the sum over ranks and micro-batches.
  virtual void finish_gradients() = 0;
  // The unit's owned weights have new values: makes them those of every rank, at the latest when the unit is
  // acquired next. Of a copy: receives them. Called for all units in order.
  virtual void publish_weights(int unit, Traffic traffic) = 0;

  // Before each micro-batch that a piece evaluates: calls of acquire follow `acquires`. Nothing is gathered for
  // the next one, so that the pool is as full however many there are.
  virtual void begin_evaluation(std::span<const int> /*acquires*/) {}

  // Bytes that the pool of whole units held at most, of its capacity. 0 where there is none.
  virtual std::int64_t transient_peak() const { return 0; }
  // The same since the last call of this.
  virtual std::int64_t take_transient_peak() { return 0; }
  // What the pool holds: after equal states of one strategy it does the same in equal calls, if units are as
  // far from their first and their last gradients of the step, and the next acquires are the same.
  virtual std::vector<std::int64_t> transient_state() const { return {}; }
  virtual std::int64_t transient_capacity() const { return 0; }
};

// Between the first pipeline stage, which trains the embedding, and the last, whose head shares its table: a
// group of the two, in this order. Null where one rank has both, or nothing is shared.
struct TiedLink {
  Communicator* stages = nullptr;
  int owner_unit = -1;  // on the first stage
  int copy_unit = -1;   // on the last one
  bool is_owner() const { return stages != nullptr && owner_unit >= 0; }
  bool is_copy() const { return stages != nullptr && copy_unit >= 0; }
};

namespace gradsync {
class CopySum;
}

// What a strategy works with; all outlive it. Nobody else uses `ranks` while jobs of `queue` may run.
struct GradSyncParts {
  ParamStore& store;
  Device& device;
  Stream& stream;  // of the model
  Communicator& ranks;
  CommQueue& queue;
  const gradsync::CopySum& copies;
  Arena& idle;  // empty memory that nobody uses from the last backward pass to the end of finish_gradients()
  TiedLink tied;
};

// The strategy of options.zero. Its memory is allocated here.
std::unique_ptr<GradSync> make_grad_sync(const GradSyncParts& parts, const GradSyncOptions& options);

}  // namespace meshtrain
