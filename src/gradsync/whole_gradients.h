// Gradients of which every rank keeps all (stages 0 and 1). Micro-steps add up in place, and the last one
// reduces them over ranks in buckets, as they become ready; or each micro-step is a leaf of the tree.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "gradsync/bucket.h"
#include "gradsync/grad_sync.h"
#include "gradsync/leaf_tree.h"

namespace meshtrain::gradsync {

// How the stage reduces, in jobs of the communication queue.
struct WholeReduction {
  // Sums these units' gradients over ranks.
  std::function<void(const std::vector<int>& units)> reduce;
  // The same, where the tree has left this rank's part of the sum.
  std::function<void(Stream& stream, int unit, const Tensor& part)> take;
};

class WholeGradients {
 public:
  WholeGradients(const GradSyncParts& parts, const GradSyncOptions& options, WholeReduction reduction);

  void begin_micro_step(std::int64_t index) { micro_step_ = index; }
  bool begin(int unit);
  void end(int unit);
  void finish();

 private:
  void submit_bucket();

  GradSyncParts parts_;
  WholeReduction reduction_;
  std::int64_t micro_steps_;
  std::int64_t micro_step_ = 0;
  Bucket bucket_;
  std::optional<LeafTree> tree_;
  std::vector<CommQueue::Ticket> leaves_;  // by unit: the job that reads its last leaf
};

}  // namespace meshtrain::gradsync
