// Token embedding, with learned positions where the architecture has them.
//
// Between tensor-parallel ranks the table is cut by rows: each looks up the tokens that it has, and the sum
// over ranks, which has the bits of the whole table's rows, leads to the outer layout
// (shard/tensor/tensor_group.h). Positions are whole on every rank, and one of them adds them.
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

class Embedding {
 public:
  Embedding() = default;
  // table [vocab / ranks rounded up, hidden], this rank's part of it; positions [context, hidden] or undefined.
  explicit Embedding(ParamRef table, ParamRef positions = {}, const TensorPart& part = {})
      : table_(table), positions_(positions), first_token_(table.shape()[0] * part.rank) {}

  // tokens int32 [tokens] → out [outer rows, hidden]. `first_position` is the place of each sequence's first
  // token.
  void forward(Context& ctx, BatchShape shape, const Tensor& tokens, std::int64_t first_position,
               const Tensor& out) const;
  // There is no input gradient: tokens are not differentiable. dout [outer rows, hidden].
  void backward_weight(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& dout) const;

 private:
  ParamRef table_;
  ParamRef positions_;
  std::int64_t first_token_ = 0;
};

}  // namespace meshtrain
