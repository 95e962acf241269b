// Gradients of which each rank keeps its own part (stages 2 and 3). A unit's whole gradients live from the
// first write of its backward pass until they are reduced, at each micro-step.
#pragma once

#include <optional>

#include "gradsync/grad_sync.h"
#include "gradsync/leaf_tree.h"
#include "gradsync/transient_pool.h"

namespace meshtrain::gradsync {

class ShardedGradients {
 public:
  ShardedGradients(const GradSyncParts& parts, const GradSyncOptions& options, TransientPool& pool);

  // Waits for what is left of the one before, so that all micro-steps find the same room in the pool.
  void begin_micro_step(std::int64_t index) {
    wait_for_reducing();
    micro_step_ = index;
  }
  // Gives the unit, and tied uses in it, memory to write into.
  void begin(int unit);
  // Reduces the unit in the background, after adding tied uses of its weights.
  void end(int unit);
  void finish();

 private:
  // Whole gradients that a job reads; one at a time, so that with those being written there are two.
  struct Reducing {
    CommQueue::Ticket ticket;
    Tensor whole;
    Tensor part;
  };
  void wait_for_reducing();
  void submit(int unit, const Tensor& whole, const Tensor& part);

  GradSyncParts parts_;
  TransientPool& pool_;
  std::int64_t micro_steps_;
  std::int64_t micro_step_ = 0;
  std::optional<LeafTree> tree_;
  std::optional<Reducing> reducing_;
};

}  // namespace meshtrain::gradsync
