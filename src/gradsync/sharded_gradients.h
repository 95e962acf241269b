// Gradients of which each rank keeps its own part (stages 2 and 3). A unit's whole gradients live from the
// first write of its backward pass until they are reduced, at each micro-step.
#pragma once

#include <optional>
#include <vector>

#include "gradsync/grad_sync.h"
#include "gradsync/leaf_tree.h"
#include "gradsync/tied.h"
#include "gradsync/transient_pool.h"

namespace meshtrain::gradsync {

class ShardedGradients {
 public:
  ShardedGradients(const GradSyncParts& parts, const GradSyncOptions& options, TransientPool& pool);

  void begin_step();
  // Waits for what is left of the one before, so that all micro-steps find the same room in the pool.
  void begin_backward() { wait_for_reducing(); }
  // Gives the unit memory to write into.
  void begin(int unit);
  // Reduces the unit in the background.
  void end(int unit);
  void finish();
  // Appends where its blocks of the pool lie, and whose they are.
  void append_state(std::vector<std::int64_t>& state) const;

 private:
  Buffer leaf_memory_;

 public:
  TiedGradients tied;

 private:
  // Whole gradients that a job reads; one at a time, so that with those being written there are two.
  struct Reducing {
    CommQueue::Ticket ticket;
    int unit;
    Tensor whole;
    Tensor part;
  };
  void wait_for_reducing();
  void submit(int unit, const Tensor& whole, std::int64_t step);
  void reduce(Stream& stream, int unit, const Tensor& whole, const Tensor& part, std::int64_t step);

  GradSyncParts parts_;
  TransientPool& pool_;
  std::int64_t micro_steps_;
  std::vector<std::int64_t> steps_;  // by unit: micro-batches done in this step
  std::optional<LeafTree> tree_;
  std::optional<Reducing> reducing_;
  Tensor late_;  // whole gradients that wait for what the last stage sends
};

}  // namespace meshtrain::gradsync
