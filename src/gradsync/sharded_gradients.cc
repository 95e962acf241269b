#include "gradsync/sharded_gradients.h"

#include "ops/elementwise.h"

namespace meshtrain::gradsync {

ShardedGradients::ShardedGradients(const GradSyncParts& parts, const GradSyncOptions& options,
                                   TransientPool& pool)
    : parts_(parts), pool_(pool), micro_steps_(options.micro_steps) {
  if (options.reduction == Reduction::kTree) {
    tree_.emplace(parts.device, parts.store, parts.ranks, micro_steps_, /*owned_top=*/true);
  }
}

void ShardedGradients::wait_for_reducing() {
  if (!reducing_) return;
  parts_.queue.wait(reducing_->ticket);
  pool_.release(reducing_->whole);
  if (reducing_->part.defined()) pool_.release(reducing_->part);
  reducing_.reset();
}

void ShardedGradients::begin(int unit) {
  ParamStore& store = parts_.store;
  const Tensor whole =
      pool_.allocate(store.gradient_dtype(), store.units()[static_cast<std::size_t>(unit)].elements);
  store.clear_padding(parts_.stream, unit, whole);
  store.place_gradients(unit, whole);
  for (std::size_t i = 0; i < store.tied_uses().size(); ++i) {
    const TiedUse& use = store.tied_uses()[i];
    if (use.unit != unit) continue;
    store.place_tied_gradients(static_cast<int>(i), pool_.allocate(store.gradient_dtype(), use.shape.numel()));
  }
}

void ShardedGradients::end(int unit) {
  ParamStore& store = parts_.store;
  store.add_tied_gradients(parts_.stream, unit);
  for (std::size_t i = 0; i < store.tied_uses().size(); ++i) {
    if (store.tied_uses()[i].owner != unit) continue;
    pool_.release(store.tied_gradients(static_cast<int>(i)));
    store.place_tied_gradients(static_cast<int>(i), {});
  }
  wait_for_reducing();
  const Tensor whole = store.unit_gradients(unit);
  store.place_gradients(unit, {});
  Tensor part;  // the sum over ranks, before it is added to those of earlier micro-steps
  if (!tree_ && micro_step_ > 0) part = pool_.allocate(whole.dtype(), store.owned_elements(unit));
  submit(unit, whole, part);
}

void ShardedGradients::submit(int unit, const Tensor& whole, const Tensor& part) {
  const auto job = [this, unit, whole, part, step = micro_step_](Stream& stream) {
    const Tensor owned = parts_.store.owned_gradients(unit);
    if (tree_) {
      tree_->add(stream, unit, whole, step);
      if (step + 1 == micro_steps_) tree_->finish(stream, unit);
      return;
    }
    parts_.ranks.reduce_scatter(whole, part.defined() ? part : owned, ReduceOp::kSum, Traffic::kGradients);
    if (part.defined()) ops::add(stream, owned, part, owned);
  };
  reducing_ = {.ticket = parts_.queue.submit(job, "reduce gradients"), .whole = whole, .part = part};
}

void ShardedGradients::finish() {
  wait_for_reducing();
  parts_.queue.wait_all();
}

}  // namespace meshtrain::gradsync
