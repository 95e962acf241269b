// Stage 1: masters and optimizer state are sharded. Gradients are whole on every rank; each needs the sum of
// its own part only.
#include <optional>
#include <utility>

#include "gradsync/bucket.h"
#include "gradsync/leaf_tree.h"
#include "gradsync/strategies.h"
#include "gradsync/weight_gather.h"
#include "ops/transfer.h"

namespace meshtrain::gradsync {
namespace {

class Zero1 final : public GradSync {
 public:
  Zero1(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        weights_(parts),
        micro_steps_(options.micro_steps),
        bucket_(parts.store, options.bucket_bytes),
        reduced_(parts.store.units().size(), 0) {
    if (options.reduction == Reduction::kTree) {
      tree_.emplace(parts.device, parts.store, parts.ranks, micro_steps_, /*owned_top=*/false);
    }
  }

  void begin_micro_step(std::int64_t index) override { micro_step_ = index; }
  void acquire(int unit) override { weights_.wait(unit); }

  bool begin_gradients(int unit) override {
    if (!tree_) return micro_step_ > 0;
    parts_.queue.wait(reduced_[static_cast<std::size_t>(unit)]);
    return false;
  }

  void end_gradients(int unit) override {
    const bool last = micro_step_ + 1 == micro_steps_;
    if (tree_ || last) parts_.store.add_tied_gradients(parts_.stream, unit);
    if (tree_) {
      reduced_[static_cast<std::size_t>(unit)] =
          parts_.queue.submit([this, unit, last, step = micro_step_](Stream& stream) {
            tree_->add(stream, unit, parts_.store.unit_gradients(unit), step);
            if (last) ops::copy(stream, tree_->finish(stream, unit), parts_.store.owned_gradients(unit));
          });
    } else if (last && bucket_.add(unit)) {
      reduce(bucket_.take());
    }
  }

  void finish_gradients() override {
    reduce(bucket_.take());
    parts_.queue.wait_all();
  }

  void publish_weights(int unit, Traffic traffic) override { weights_.publish(unit, traffic); }
  void begin_evaluation() override {}
  void settle() override { parts_.queue.wait_all(); }

 private:
  void reduce(std::vector<int> units) {
    if (units.empty()) return;
    parts_.queue.submit([this, units = std::move(units)](Stream&) {
      for (const int unit : units) {
        parts_.ranks.reduce_scatter(parts_.store.unit_gradients(unit), parts_.store.owned_gradients(unit),
                                    ReduceOp::kSum, Traffic::kGradients);
      }
    });
  }

  GradSyncParts parts_;
  WeightGather weights_;
  std::int64_t micro_steps_;
  std::int64_t micro_step_ = 0;
  Bucket bucket_;
  std::optional<LeafTree> tree_;
  std::vector<CommQueue::Ticket> reduced_;  // by unit: its last leaf
};

}  // namespace

std::unique_ptr<GradSync> make_zero1(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Zero1>(parts, options);
}

}  // namespace meshtrain::gradsync
