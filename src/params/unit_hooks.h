// How a model says which weights and gradients it is about to use. A strategy that keeps them in pieces on
// several ranks, or reduces gradients between ranks, overrides this; as it is, all stay where they are.
#pragma once

namespace meshtrain {

class UnitHooks {
 public:
  UnitHooks() = default;
  UnitHooks(const UnitHooks&) = delete;
  UnitHooks& operator=(const UnitHooks&) = delete;
  virtual ~UnitHooks() = default;

  // Weights of the unit can be read until the release. Calls come in the order that the model announces
  // (Transformer::acquires_of), and several units may be held at once.
  virtual void acquire(int /*unit*/) {}
  virtual void release(int /*unit*/) {}

  // Gradients of the unit's own weights can be written until the end. Returns whether they add to what is there
  // (earlier micro-batches) or start afresh.
  virtual bool begin_gradients(int /*unit*/) { return false; }
  // The unit's gradients of this micro-batch are complete, but for tied uses of its weights.
  virtual void end_gradients(int /*unit*/) {}

  // The same for the gradient of a head that shares the embedding's table; ended before that of the embedding
  // begins, where one rank has both.
  virtual bool begin_tied_gradients() { return false; }
  virtual void end_tied_gradients() {}
};

}  // namespace meshtrain
