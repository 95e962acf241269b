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

TiedGradients::TiedGradients(const GradSyncParts& parts, const GradSyncOptions& options)
    : parts_(parts), micro_steps_(options.micro_steps) {
  const bool tree = options.reduction == Reduction::kTree;
  if (head_here() && tree) {
    tree_.emplace(parts.device, std::vector{unit_elements(parts.store, parts.store.tied_uses().front().owner)},
                  parts.ranks, micro_steps_);
  }
  if (!parts.tied.is_owner()) return;
  const std::int64_t elements = unit_elements(parts.store, parts.tied.owner_unit);
  received_ = parts.device.allocate(
      (tree ? elements / parts.ranks.size() : elements) * size_of(parts.store.gradient_dtype()),
      MemoryCategory::kCommunication);
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
    const Tensor received = tensor_in(received_, 0, flat.dtype(), flat.shape());
    receive(received);
    ops::add(stream, flat, received, flat);
  } else if (head_of(unit)) {
    ops::add(stream, flat, parts_.store.tied_gradients(0), flat);
  }
}

void TiedGradients::add_part(Stream& stream, int unit, const Tensor& part) const {
  if (arrives_late(unit)) {
    const Tensor received = tensor_in(received_, 0, part.dtype(), part.shape());
    receive(received);
    ops::add(stream, part, received, part);
  } else if (head_of(unit)) {
    ops::add(stream, part, tree_->finish(stream, 0), part);
  }
}

void TiedGradients::finish() {
  if (!parts_.tied.is_copy()) return;
  parts_.queue.submit(
      [this](Stream& stream) {
        parts_.tied.stages->send(tree_ ? tree_->finish(stream, 0) : parts_.store.tied_gradients(0), kFirstStage,
                                 Traffic::kPipeline);
      },
      "send tied gradients");
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
