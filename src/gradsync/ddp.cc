// Stage 0: every rank keeps everything; gradients are all-reduced.
#include <algorithm>
#include <optional>
#include <utility>

#include "gradsync/bucket.h"
#include "gradsync/leaf_tree.h"
#include "gradsync/strategies.h"

namespace meshtrain::gradsync {
namespace {

class Ddp final : public GradSync {
 public:
  Ddp(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        micro_steps_(options.micro_steps),
        bucket_(parts.store, options.bucket_bytes),
        reduced_(parts.store.units().size(), 0) {
    if (options.reduction == Reduction::kTree) {
      tree_.emplace(parts.device, parts.store, parts.ranks, micro_steps_, /*owned_top=*/false);
    }
  }

  void begin_micro_step(std::int64_t index) override { micro_step_ = index; }

  bool begin_gradients(int unit) override {
    if (!tree_) return micro_step_ > 0;
    parts_.queue.wait(reduced_[static_cast<std::size_t>(unit)]);
    return false;
  }

  void end_gradients(int unit) override {
    if (tree_) {
      parts_.store.add_tied_gradients(parts_.stream, unit);
      reduced_[static_cast<std::size_t>(unit)] =
          parts_.queue.submit([this, unit, step = micro_step_](Stream& stream) {
            tree_->add(stream, unit, parts_.store.unit_gradients(unit), step);
          });
    } else if (micro_step_ + 1 == micro_steps_) {
      parts_.store.add_tied_gradients(parts_.stream, unit);
      if (bucket_.add(unit)) reduce(bucket_.take());
    }
  }

  void finish_gradients() override {
    reduce(bucket_.take());
    for (int unit = 0; tree_ && unit < static_cast<int>(parts_.store.units().size()); ++unit) {
      parts_.queue.submit([this, unit](Stream& stream) {
        parts_.ranks.all_gather(tree_->finish(stream, unit), parts_.store.unit_gradients(unit),
                                Traffic::kGradients);
      });
    }
    parts_.queue.wait_all();
  }

  void publish_weights(int /*unit*/, Traffic /*traffic*/) override {}
  void begin_evaluation() override {}
  void settle() override { parts_.queue.wait_all(); }

 private:
  // Neighbours in the flat layout are one message.
  void reduce(std::vector<int> units) {
    std::sort(units.begin(), units.end());
    for (std::size_t i = 0; i < units.size();) {
      std::size_t end = i + 1;
      while (end < units.size() && units[end] == units[end - 1] + 1) ++end;
      parts_.queue.submit([this, first = units[i], last = units[end - 1]](Stream&) {
        const Tensor gradients = parts_.store.gradients_of_units(first, last);
        parts_.ranks.all_reduce(gradients, gradients, ReduceOp::kSum, Traffic::kGradients);
      });
      i = end;
    }
  }

  GradSyncParts parts_;
  std::int64_t micro_steps_;
  std::int64_t micro_step_ = 0;
  Bucket bucket_;
  std::optional<LeafTree> tree_;
  std::vector<CommQueue::Ticket> reduced_;  // by unit: its last leaf
};

}  // namespace

std::unique_ptr<GradSync> make_ddp(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Ddp>(parts, options);
}

}  // namespace meshtrain::gradsync
