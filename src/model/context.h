// What a layer is given to run in.
//
// Every layer has three methods: forward; backward_input, the gradient of its input; backward_weight,
// the gradient of its weights. The last may run later than the second. Gradients of weights
// accumulate over micro-batches; gradients of activations overwrite. Activations are [tokens, ..]
// with tokens = batch·seq, in batch order.
#pragma once

#include <cstdint>

#include "device/arena.h"
#include "device/stream.h"

namespace meshtrain {

struct Context {
  Stream& stream;
  Arena& saved;  // what forward keeps for the backward pass
  Arena& work;   // temporaries, released by the scope that made them
  // False: a backward pass follows no other of this step, so weight gradients start here.
  bool accumulate = false;
};

struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t tokens() const { return batch * seq; }
};

}  // namespace meshtrain
