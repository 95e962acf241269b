#include "gradsync/whole_gradients.h"

#include <utility>

namespace meshtrain::gradsync {

WholeGradients::WholeGradients(const GradSyncParts& parts, const GradSyncOptions& options,
                               WholeReduction reduction)
    : parts_(parts),
      reduction_(std::move(reduction)),
      micro_steps_(options.micro_steps),
      bucket_(parts.store, options.bucket_bytes),
      leaves_(parts.store.units().size(), 0) {
  if (options.reduction == Reduction::kTree) {
    tree_.emplace(parts.device, parts.store, parts.ranks, micro_steps_, /*owned_top=*/false);
  }
}

bool WholeGradients::begin(int unit) {
  if (!tree_) return micro_step_ > 0;
  parts_.queue.wait(leaves_[static_cast<std::size_t>(unit)]);
  return false;
}

void WholeGradients::end(int unit) {
  const bool last = micro_step_ + 1 == micro_steps_;
  if (tree_ || last) parts_.store.add_tied_gradients(parts_.stream, unit);
  if (tree_) {
    leaves_[static_cast<std::size_t>(unit)] = parts_.queue.submit(
        [this, unit, last, step = micro_step_](Stream& stream) {
          tree_->add(stream, unit, parts_.store.unit_gradients(unit), step);
          if (last) reduction_.take(stream, unit, tree_->finish(stream, unit));
        },
        "reduce gradients");
  } else if (last && bucket_.add(unit)) {
    submit_bucket();
  }
}

void WholeGradients::submit_bucket() {
  parts_.queue.submit([this, units = bucket_.take()](Stream&) { reduction_.reduce(units); },
                      "reduce gradients");
}

void WholeGradients::finish() {
  if (!bucket_.empty()) submit_bucket();
  parts_.queue.wait_all();
}

}  // namespace meshtrain::gradsync
