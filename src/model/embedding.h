// Token embedding, with learned positions where the architecture has them.
#pragma once

#include "model/context.h"
#include "params/param_store.h"

namespace meshtrain {

class Embedding {
 public:
  Embedding() = default;
  // table [vocab, hidden]; positions [context, hidden] or undefined.
  explicit Embedding(ParamRef table, ParamRef positions = {}) : table_(table), positions_(positions) {}

  // tokens int32 [tokens] → out [tokens, hidden]. `first_position` is the place of each sequence's first token.
  void forward(Context& ctx, BatchShape shape, const Tensor& tokens, std::int64_t first_position,
               const Tensor& out) const;
  // There is no input gradient: tokens are not differentiable.
  void backward_weight(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& dout) const;

 private:
  ParamRef table_;
  ParamRef positions_;
};

}  // namespace meshtrain
