#include "gradsync/whole_gradients.h"

#include <algorithm>
#include <utility>

#include "gradsync/copy_sum.h"

namespace meshtrain::gradsync {

WholeGradients::WholeGradients(const GradSyncParts& parts, const GradSyncOptions& options,
                               WholeReduction reduction)
    : leaf_memory_(leaves_of(parts, options)),
      tied(parts, options, leaf_memory_),
      parts_(parts),
      reduction_(std::move(reduction)),
      micro_steps_(options.micro_steps),
      steps_(parts.store.units().size(), 0),
      bucket_(parts.store, options.bucket_bytes),
      leaves_(parts.store.units().size(), 0) {
  if (options.reduction == Reduction::kTree) {
    tree_.emplace(parts.device, trained_unit_elements(parts.store), parts.ranks, micro_steps_, leaf_memory_);
  }
}

void WholeGradients::begin_step() {
  std::fill(steps_.begin(), steps_.end(), 0);
  tied.begin_step();
}

bool WholeGradients::begin(int unit) {
  if (!tree_) return steps_[static_cast<std::size_t>(unit)] > 0;
  parts_.queue.wait(leaves_[static_cast<std::size_t>(unit)]);
  return false;
}

void WholeGradients::end(int unit) {
  const std::int64_t step = steps_[static_cast<std::size_t>(unit)]++;
  const bool last = step + 1 == micro_steps_;
  if (!tree_) {
    if (last && !tied.arrives_late(unit)) end_fast(unit);
    return;
  }
  leaves_[static_cast<std::size_t>(unit)] = parts_.queue.submit(
      [this, unit, last, step](Stream& stream) {
        const Tensor gradients = parts_.store.unit_gradients(unit);
        parts_.copies.add(stream, unit, gradients);
        tree_->add(stream, unit, gradients, step);
        if (last && !tied.arrives_late(unit)) finish_tree(stream, unit);
      },
      "reduce gradients");
}

void WholeGradients::end_fast(int unit) {
  tied.add(parts_.stream, unit, parts_.store.unit_gradients(unit));
  if (!bucket_.is_neighbour(unit)) submit_bucket();
  if (bucket_.add(unit)) submit_bucket();
}

void WholeGradients::finish_tree(Stream& stream, int unit) {
  const Tensor part = tree_->finish(stream, unit);
  tied.add_part(stream, unit, part);
  reduction_.take(stream, unit, part);
}

void WholeGradients::submit_bucket() {
  parts_.queue.submit(
      [this, units = bucket_.take()](Stream& stream) {
        for (const int unit : units) parts_.copies.add(stream, unit, parts_.store.unit_gradients(unit));
        reduction_.reduce(units);
      },
      "reduce gradients");
}

void WholeGradients::finish() {
  if (!bucket_.empty()) submit_bucket();
  tied.finish();
  if (parts_.tied.is_owner()) {
    parts_.queue.submit(
        [this, unit = parts_.tied.owner_unit](Stream& stream) {
          if (tree_) {
            finish_tree(stream, unit);
            return;
          }
          tied.add(stream, unit, parts_.store.unit_gradients(unit));
          parts_.copies.add(stream, unit, parts_.store.unit_gradients(unit));
          reduction_.reduce({unit});
        },
        "reduce tied gradients");
  }
  parts_.queue.wait_all();
  tied.finished();
}

}  // namespace meshtrain::gradsync
