#include "model/embedding.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace meshtrain {

void Embedding::forward(Context& ctx, BatchShape shape, const Tensor& tokens, std::int64_t first_position,
                        const Tensor& out) const {
  const ArenaScope scope(ctx.work);
  const TensorPart& part = ctx.tensor.part();
  const Tensor partial =
      part.sequence_parallel ? ctx.work.allocate(out.dtype(), {shape.tokens(), out.dim(1)}) : out;
  const bool adds_positions = positions_.defined() && part.rank == 0;
  ops::embedding_forward(ctx.stream, tokens, table_.weight(), adds_positions ? positions_.weight() : Tensor(),
                         shape.seq, first_position, partial, first_token_);
  ctx.tensor.reduce(partial, out);
}

void Embedding::backward_weight(Context& ctx, BatchShape shape, const Tensor& tokens,
                                const Tensor& dout) const {
  const ArenaScope scope(ctx.work);
  const Tensor dy = ctx.tensor.gather(dout, ctx.work);
  // Only the rows of tokens that occur are touched, so a fresh gradient has to be cleared first.
  if (!ctx.accumulate) ops::fill(ctx.stream, table_.gradient(), 0.0F);
  ops::embedding_backward(ctx.stream, tokens, dy, table_.gradient(), first_token_);
  if (!positions_.defined()) return;
  if (!ctx.accumulate) ops::fill(ctx.stream, positions_.gradient(), 0.0F);
  ops::position_backward(ctx.stream, dy, shape.seq, positions_.gradient());
}

}  // namespace meshtrain
