#include "model/embedding.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace meshtrain {

void Embedding::forward(Context& ctx, BatchShape shape, const Tensor& tokens, std::int64_t first_position,
                        const Tensor& out) const {
  ops::embedding_forward(ctx.stream, tokens, table_.weight(),
                         positions_.defined() ? positions_.weight() : Tensor(), shape.seq, first_position, out);
}

void Embedding::backward_weight(Context& ctx, BatchShape shape, const Tensor& tokens,
                                const Tensor& dout) const {
  // Only the rows of tokens that occur are touched, so a fresh gradient has to be cleared first.
  if (!ctx.accumulate) ops::fill(ctx.stream, table_.gradient(), 0.0F);
  ops::embedding_backward(ctx.stream, tokens, dout, table_.gradient());
  if (!positions_.defined()) return;
  if (!ctx.accumulate) ops::fill(ctx.stream, positions_.gradient(), 0.0F);
  ops::position_backward(ctx.stream, dout, shape.seq, positions_.gradient());
}

}  // namespace meshtrain
