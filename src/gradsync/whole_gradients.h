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
#include "gradsync/tied.h"

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

  void begin_step();
  bool begin(int unit);
  void end(int unit);
  void finish();

 private:
  Buffer leaf_memory_;

 public:
  TiedGradients tied;

 private:
  void submit_bucket();
  void end_fast(int unit);
  void finish_tree(Stream& stream, int unit);

  GradSyncParts parts_;
  WholeReduction reduction_;
  std::int64_t micro_steps_;
  std::vector<std::int64_t> steps_;  // by unit: micro-batches done in this step
  Bucket bucket_;
  std::optional<LeafTree> tree_;
  std::vector<CommQueue::Ticket> leaves_;  // by unit: the job that reads its last leaf
};

}  // namespace meshtrain::gradsync
