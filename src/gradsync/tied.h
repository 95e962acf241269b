// A head that shares the embedding's table. Its gradient has a buffer of its own, laid out as the embedding's
// unit; where the head lies on the last pipeline stage and the embedding on the first, that stage keeps a copy
// of the unit's weights, which the first one trains: gradients go there once a step, weights come back.
//
// Fast: the head's gradient adds up over a rank's micro-steps, and is added to the embedding's of the last one
// before it is reduced over ranks. Tree: the head's gradients have a tree of their own, whose result is added
// to the embedding's. Either is the same sum on any number of stages.
#pragma once

#include <optional>

#include "gradsync/grad_sync.h"
#include "gradsync/leaf_tree.h"

namespace meshtrain::gradsync {

class TiedGradients {
 public:
  // `leaves`: as for LeafTree.
  TiedGradients(const GradSyncParts& parts, const GradSyncOptions& options, const Buffer& leaves);

  void begin_step() { steps_ = 0; }
  // Around the backward pass of a head here; begin() says whether it adds to what is there.
  bool begin();
  void end();

  // Whether the gradients of `unit` are complete only at the end of the step, with what the last stage sends.
  bool arrives_late(int unit) const { return parts_.tied.is_owner() && unit == parts_.tied.owner_unit; }
  // Fast: completes `flat`, the gradients of all of `unit` at its last micro-step, by the thread that computes
  // where they do not arrive late, else by a job.
  void add(Stream& stream, int unit, const Tensor& flat) const;
  // Tree, in a job: the same for this rank's part of the sum, after the last leaves.
  void add_part(Stream& stream, int unit, const Tensor& part) const;
  // At the end of the step: the last stage sends what it has, and the first has memory for it until finished().
  void finish();
  // All jobs are done.
  void finished();

 private:
  bool head_here() const { return !parts_.store.tied_uses().empty(); }
  bool head_of(int unit) const { return head_here() && parts_.store.tied_uses().front().owner == unit; }
  void receive(const Tensor& to) const;

  GradSyncParts parts_;
  std::int64_t micro_steps_;
  Reduction reduction_;
  std::int64_t steps_ = 0;
  std::optional<LeafTree> tree_;  // where the head is
  CommQueue::Ticket reading_ = 0;
  Tensor received_;  // on the first stage, flat: whole gradients, or a part of their sum
};

// leaf_memory() for all trees of a rank: of the units that it trains, and of a head's table.
Buffer leaves_of(const GradSyncParts& parts, const GradSyncOptions& options);

// Weights of a unit that another stage has a copy of.
class TiedWeights {
 public:
  explicit TiedWeights(const GradSyncParts& parts) : parts_(parts) {}

  // The unit's owned weights have new values: sends them, or receives what this rank keeps of a copy.
  void pass_on(int unit, Traffic traffic);
  // Until a copy has come.
  void wait(int unit) {
    if (parts_.tied.is_copy() && unit == parts_.tied.copy_unit) parts_.queue.wait(arrival_);
  }

 private:
  GradSyncParts parts_;
  CommQueue::Ticket arrival_ = 0;
};

}  // namespace meshtrain::gradsync
