// What a layer is given to run in.
//
// Every layer has three methods: forward; backward_input, the gradient of its input; backward_weight,
// the gradient of its weights. The last may run later than the second. Gradients of weights
// accumulate over micro-batches; gradients of activations overwrite. Activations are [tokens, ..]
// with tokens = batch·seq, in batch order; between layers they have the outer layout of
// shard/tensor/tensor_group.h, which is the same where a rank has the layers for itself.
#pragma once

#include <cstdint>

#include "device/arena.h"
#include "device/stream.h"
#include "params/unit_hooks.h"
#include "shard/tensor/tensor_group.h"

namespace meshtrain {

struct Context {
  Stream& stream;
  Arena& saved;  // what forward keeps for the backward pass
  Arena& work;   // temporaries, released by the scope that made them
  Arena& kept;   // what backward_input leaves for backward_weight; may be `work`
  // In place of `saved` for what is computed again where it is needed (full recompute); may be `saved`.
  Arena& recomputed;
  UnitHooks& units;
  const TensorGroup& tensor;
  // What UnitHooks::begin_gradients said of the unit whose layers run: gradients add to what is there.
  bool accumulate = false;

  // The same with another arena.
  Context saving_in(Arena& arena) const {
    return {stream, arena, work, kept, recomputed, units, tensor, accumulate};
  }
  Context keeping_in(Arena& arena) const {
    return {stream, saved, work, arena, recomputed, units, tensor, accumulate};
  }
};

struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t tokens() const { return batch * seq; }
};

}  // namespace meshtrain
