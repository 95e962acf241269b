// Final projection and cross-entropy. The rows of a batch are walked in chunks, so that the logits
// of the whole batch never exist: a chunk's logits become its losses and, in the same place, its
// gradient, which is at once multiplied into dx and dW.
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

class LmHead {
 public:
  // The chunk's fp32 logits take at most about this many bytes (one row at least).
  static constexpr std::int64_t kChunkBytes = std::int64_t{128} << 20U;

  LmHead() = default;
  explicit LmHead(ParamRef weight) : weight_(weight) {}

  // x [tokens, hidden], targets int32 [tokens] → losses fp32 [tokens].
  void forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& losses) const;
  // The same, and in the same pass dx [tokens, hidden] of `scale` times the sum of losses; the
  // gradient of the weight accumulates. Splitting off backward_weight would cost a second product
  // for the logits or a place to keep them. dx may alias x.
  void forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, float scale, const Tensor& losses,
                        const Tensor& dx) const;
  // logits fp32 [tokens, vocab]: for generation and tests, on few rows.
  void logits(Context& ctx, const Tensor& x, const Tensor& out) const;

 private:
  template <class Chunk>
  void for_each_chunk(std::int64_t rows, Chunk&& chunk) const;

  ParamRef weight_;
};

}  // namespace meshtrain
