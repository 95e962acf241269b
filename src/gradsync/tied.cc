#include "gradsync/tied.h"

#include <array>

#include "ops/elementwise.h"

namespace meshtrain::gradsync {
namespace {

constexpr int kFirstStage = 0;  // in the group of the two
constexpr int kLastStage = 1;

std::int64_t unit_elements(const ParamStore& store, int unit) {
  return store.units()[static_cast<std::size_t>(unit)].elements;
}

}  // namespace

Buffer leaves_of(const GradSyncParts& parts, const GradSyncOptions& options) {
  if (options.reduction != Reduction::kTree) return {};
  std::vector<std::int64_t> elements = trained_unit_elements(parts.store);
  for (const TiedUse& use : parts.store.tied_uses()) elements.push_back(unit_elements(parts.store, use.owner));
  return leaf_memory(parts.device, elements, parts.ranks);
}

TiedGradients::TiedGradients(const GradSyncParts& parts, const GradSyncOptions& options, const Buffer& leaves)
    : parts_(parts), micro_steps_(options.micro_steps), reduction_(options.reduction) {
  if (head_here() && reduction_ == Reduction::kTree) {
    tree_.emplace(parts.device, std::vector{unit_elements(parts.store, parts.store.tied_uses().front().owner)},
                  parts.ranks, micro_steps_, leaves);
  }
}

bool TiedGradients::begin() {
  if (!tree_) return steps_ > 0;
  parts_.queue.wait(reading_);
  return false;
}

void TiedGradients::end() {
  const std::int64_t step = steps_++;
  if (!tree_) return;
  reading_ = parts_.queue.submit(
      [this, step](Stream& stream) { tree_->add(stream, 0, parts_.store.tied_gradients(0), step); },
      "reduce tied gradients");
}

void TiedGradients::receive(const Tensor& to) const {
  parts_.tied.stages->receive(to, kLastStage, Traffic::kPipeline);
}

void TiedGradients::add(Stream& stream, int unit, const Tensor& flat) const {
  if (arrives_late(unit)) {
    receive(received_);
    ops::add(stream, flat, received_, flat);
  } else if (head_of(unit)) {
    ops::add(stream, flat, parts_.store.tied_gradients(0), flat);
  }
}

void TiedGradients::add_part(Stream& stream, int unit, const Tensor& part) const {
  if (arrives_late(unit)) {
    receive(received_);
    ops::add(stream, part, received_, part);
  } else if (head_of(unit)) {
    ops::add(stream, part, tree_->finish(stream, 0), part);
  }
}

void TiedGradients::finish() {
  if (parts_.tied.is_owner()) {
    const std::int64_t elements = unit_elements(parts_.store, parts_.tied.owner_unit);
    const bool part = reduction_ == Reduction::kTree;
    received_ =
        parts_.idle.allocate(parts_.store.gradient_dtype(), {part ? elements / parts_.ranks.size() : elements});
  }
  if (!parts_.tied.is_copy()) return;
  parts_.queue.submit(
      [this](Stream& stream) {
        parts_.tied.stages->send(tree_ ? tree_->finish(stream, 0) : parts_.store.tied_gradients(0), kFirstStage,
                                 Traffic::kPipeline);
      },
      "send tied gradients");
}

void TiedGradients::finished() {
  if (!received_.defined()) return;
  received_ = {};
  parts_.idle.release(0);
}

void TiedWeights::pass_on(int unit, Traffic traffic) {
  if (parts_.tied.is_owner() && unit == parts_.tied.owner_unit) {
    parts_.queue.submit(
        [this, unit, traffic](Stream&) {
          parts_.tied.stages->send(parts_.store.owned_weights(unit), kLastStage, traffic);
        },
        "send tied weights");
  } else if (parts_.tied.is_copy() && unit == parts_.tied.copy_unit) {
    arrival_ = parts_.queue.submit(
        [this, unit, traffic](Stream&) {
          parts_.tied.stages->receive(parts_.store.owned_weights(unit), kFirstStage, traffic);
        },
        "receive tied weights");
  }
}

}  // namespace meshtrain::gradsync
