// Final projection and cross-entropy. The rows of a batch are walked in chunks, so that the logits
// of the whole batch never exist: a chunk's logits become its losses and, in the same place, its
// gradient, which is at once multiplied into dx and dW.
//
// Between tensor-parallel ranks the weight is cut by rows, the logits by columns: three numbers a row are
// exchanged for the softmax (ops/sharded_cross_entropy.h). x and dx have the outer layout of
// shard/tensor/tensor_group.h; targets and losses are those of all tokens on every rank.
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

class LmHead {
 public:
  // The chunk's fp32 logits take at most about this many bytes (one row at least).
  static constexpr std::int64_t kChunkBytes = std::int64_t{128} << 20U;

  LmHead() = default;
  // weight [vocab / ranks rounded up, hidden], this rank's part of it; the whole has `vocab` rows.
  LmHead(ParamRef weight, std::int64_t vocab, const TensorPart& part = {})
      : weight_(weight), vocab_(vocab), first_(weight.shape()[0] * part.rank) {}

  // x [outer rows, hidden], targets int32 [tokens] → losses fp32 [tokens].
  void forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& losses) const;
  // The same, and in the same pass dx [outer rows, hidden] of `scale` times the sum of losses; the
  // gradient of the weight accumulates. Splitting off backward_weight would cost a second product
  // for the logits or a place to keep them. dx may alias x.
  void forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, float scale, const Tensor& losses,
                        const Tensor& dx) const;
  // logits fp32 [tokens, vocab]: for generation and tests, on few rows, by a rank alone.
  void logits(Context& ctx, const Tensor& x, const Tensor& out) const;

 private:
  template <class Chunk>
  void for_each_chunk(std::int64_t rows, Chunk&& chunk) const;
  // This rank's columns of the logits of rows x, to losses and, where defined, dlogits.
  void losses_of(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& losses,
                 const Tensor& dlogits, float scale) const;
  void multiply(Context& ctx, const Tensor& x, const Tensor& logits) const;

  ParamRef weight_;
  std::int64_t vocab_ = 0;
  std::int64_t first_ = 0;  // row of the whole weight
};

}  // namespace meshtrain
