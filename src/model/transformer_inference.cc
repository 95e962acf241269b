// A transformer without a backward pass: evaluation of its pieces, and a whole model that generates.
#include <utility>

#include "model/transformer.h"
#include "ops/transfer.h"

namespace meshtrain {

void Transformer::embed(Context& ctx, const Piece& piece, BatchShape shape, const Tensor& tokens,
                        std::int64_t first_position, const Tensor& x) const {
  ctx.units.acquire(piece.first_unit);
  embedding_.forward(ctx, shape, tokens, first_position, x);
  ctx.units.release(piece.first_unit);
}

// The residual stream after the blocks, in x or `out`: both are overwritten. What the blocks save lies in
// ctx.saved, so that neither arena is filled further than a training step fills it.
Tensor Transformer::run_blocks(Context& ctx, const Piece& piece, BatchShape shape, Tensor x, Tensor out,
                               std::vector<KvCache>* caches) const {
  for (std::size_t i = 0; i < piece.blocks.size(); ++i) {
    const ArenaScope scope(ctx.recomputed);
    Context once = ctx.saving_in(ctx.recomputed);
    Block::Saved saved;
    ctx.units.acquire(piece.unit_of_block(i));
    if (caches != nullptr) {
      piece.blocks[i].forward_cached(once, shape, x, (*caches)[i], out);
    } else {
      piece.blocks[i].forward(once, shape, x, options_.recompute != RecomputePolicy::kSelective, out, saved);
    }
    ctx.units.release(piece.unit_of_block(i));
    std::swap(x, out);
  }
  return x;
}

void Transformer::evaluate(Context& ctx, int index, MicroBatch& batch, const Tensor& in,
                           const Tensor& out) const {
  const Piece& piece = at(index);
  if (piece.layers.head) batch.losses = ctx.saved.allocate(DType::kF32, {batch.shape.tokens()});
  const ArenaScope scope(ctx.saved);
  const bool ends_here = piece.layers.head;
  const bool has_blocks = !piece.blocks.empty();
  const auto allocate = [&] { return ctx.saved.allocate(options_.compute, activation(ctx, batch.shape)); };
  Tensor x = has_blocks || ends_here ? allocate() : out;
  if (piece.layers.embedding) {
    embed(ctx, piece, batch.shape, batch.tokens, 0, x);
  } else {
    ops::copy(ctx.stream, in, x);
  }
  if (has_blocks) x = run_blocks(ctx, piece, batch.shape, x, ends_here ? allocate() : out, nullptr);
  if (!ends_here) {
    if (x.raw() != out.raw()) ops::copy(ctx.stream, x, out);
    return;
  }
  NormSaved saved;
  const Tensor y = ctx.saved.allocate(options_.compute, x.shape());
  acquire_head(ctx, piece);
  final_norm_.forward(ctx, x, y, saved, ctx.saved);
  head_.forward(ctx, y, batch.targets, batch.losses);
  release_head(ctx, piece);
}

// The final norm's output [tokens, hidden], the head's units acquired.
Tensor Transformer::run_for_inference(Context& ctx, BatchShape shape, const Tensor& tokens,
                                      std::vector<KvCache>* caches) const {
  const Piece& piece = pieces_.front();
  check(piece.layers.embedding && piece.layers.head && ctx.tensor.alone(), "inference needs a whole model");
  const Tensor embedded = ctx.saved.allocate(options_.compute, activation(ctx, shape));
  embed(ctx, piece, shape, tokens, caches != nullptr ? caches->front().used : 0, embedded);
  const Tensor other = ctx.saved.allocate(options_.compute, activation(ctx, shape));
  const Tensor x = run_blocks(ctx, piece, shape, embedded, other, caches);
  const Tensor y = ctx.saved.allocate(options_.compute, x.shape());
  NormSaved saved;
  acquire_head(ctx, piece);
  final_norm_.forward(ctx, x, y, saved, ctx.saved);
  return y;
}

Tensor Transformer::decode(Context& ctx, BatchShape shape, const Tensor& tokens,
                           std::vector<KvCache>& caches) const {
  const Tensor result = ctx.work.allocate(DType::kF32, {shape.batch, spec_.vocab});
  const ArenaScope work_scope(ctx.work);
  const ArenaScope saved_scope(ctx.saved);
  const Tensor y = run_for_inference(ctx, shape, tokens, &caches);
  const Tensor last = ctx.work.allocate(options_.compute, {shape.batch, spec_.hidden});
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    ops::copy(ctx.stream, y.slice(0, (b + 1) * shape.seq - 1, 1), last.slice(0, b, 1));
  }
  head_.logits(ctx, last, result);
  release_head(ctx, pieces_.front());
  return result;
}

void Transformer::logits(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& out) const {
  const ArenaScope scope(ctx.saved);
  head_.logits(ctx, run_for_inference(ctx, shape, tokens, nullptr), out);
  release_head(ctx, pieces_.front());
}

}  // namespace meshtrain
