#include "gradsync/sharded_gradients.h"

#include <algorithm>
#include <utility>

#include "gradsync/copy_sum.h"
#include "ops/elementwise.h"

namespace meshtrain::gradsync {

ShardedGradients::ShardedGradients(const GradSyncParts& parts, const GradSyncOptions& options,
                                   TransientPool& pool)
    : leaf_memory_(leaves_of(parts, options)),
      tied(parts, options, leaf_memory_),
      parts_(parts),
      pool_(pool),
      micro_steps_(options.micro_steps),
      steps_(parts.store.units().size(), 0) {
  if (options.reduction == Reduction::kTree) {
    tree_.emplace(parts.device, trained_unit_elements(parts.store), parts.ranks, micro_steps_, leaf_memory_,
                  [store = &parts.store](int unit) { return store->owned_gradients(unit); });
  }
}

void ShardedGradients::begin_step() {
  std::fill(steps_.begin(), steps_.end(), 0);
  tied.begin_step();
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
}

void ShardedGradients::end(int unit) {
  const std::int64_t step = steps_[static_cast<std::size_t>(unit)]++;
  const Tensor whole = parts_.store.unit_gradients(unit);
  parts_.store.place_gradients(unit, {});
  wait_for_reducing();
  if (!tree_ && step + 1 == micro_steps_) {
    if (tied.arrives_late(unit)) {
      late_ = whole;
      return;
    }
    tied.add(parts_.stream, unit, whole);
  }
  submit(unit, whole, step);
}

void ShardedGradients::submit(int unit, const Tensor& whole, std::int64_t step) {
  Tensor part;  // the sum over ranks, before it is added to those of earlier micro-steps
  if (!tree_ && step > 0) part = pool_.allocate(whole.dtype(), parts_.store.owned_elements(unit));
  const CommQueue::Ticket ticket = parts_.queue.submit(
      [this, unit, whole, part, step](Stream& stream) { reduce(stream, unit, whole, part, step); },
      "reduce gradients");
  reducing_ = {.ticket = ticket, .unit = unit, .whole = whole, .part = part};
}

void ShardedGradients::append_state(std::vector<std::int64_t>& state) const {
  const auto place_of = [&](const Tensor& block) {
    return block.defined() ? pool_.offset_of(block) : std::int64_t{-1};
  };
  if (reducing_) {
    state.insert(state.end(), {reducing_->unit, place_of(reducing_->whole), place_of(reducing_->part)});
  } else {
    state.push_back(-1);
  }
  state.push_back(place_of(late_));
}

// A job.
void ShardedGradients::reduce(Stream& stream, int unit, const Tensor& whole, const Tensor& part,
                              std::int64_t step) {
  if (!tree_ && step + 1 == micro_steps_ && tied.arrives_late(unit)) tied.add(stream, unit, whole);
  parts_.copies.add(stream, unit, whole);
  const Tensor owned = parts_.store.owned_gradients(unit);
  if (tree_) {
    tree_->add(stream, unit, whole, step);
    if (step + 1 < micro_steps_) return;
    const Tensor sum = tree_->finish(stream, unit);
    if (!tied.arrives_late(unit)) tied.add_part(stream, unit, sum);
    return;
  }
  parts_.ranks.reduce_scatter(whole, part.defined() ? part : owned, ReduceOp::kSum, Traffic::kGradients);
  if (part.defined()) ops::add(stream, owned, part, owned);
}

void ShardedGradients::finish() {
  wait_for_reducing();
  tied.finish();
  if (late_.defined()) {
    submit(parts_.tied.owner_unit, std::exchange(late_, {}), micro_steps_ - 1);
    wait_for_reducing();
  } else if (tree_ && parts_.tied.is_owner()) {
    parts_.queue.submit(
        [this, unit = parts_.tied.owner_unit](Stream& stream) {
          tied.add_part(stream, unit, parts_.store.owned_gradients(unit));
        },
        "add tied gradients");
  }
  parts_.queue.wait_all();
  tied.finished();
}

}  // namespace meshtrain::gradsync
