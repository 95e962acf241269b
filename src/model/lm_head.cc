#include "model/lm_head.h"

#include <algorithm>
#include <array>

#include "ops/cross_entropy.h"
#include "ops/matmul.h"
#include "ops/sharded_cross_entropy.h"

namespace meshtrain {
namespace {

// Multiples of 64 rows keep the products' tiles whole.
std::int64_t chunk_rows(std::int64_t vocab) {
  const std::int64_t rows = LmHead::kChunkBytes / (vocab * size_of(DType::kF32));
  return rows >= 64 ? rows / 64 * 64 : std::max<std::int64_t>(rows, 1);
}

// The gradient of a chunk in the place of its logits: each row starts where the fp32 row did.
Tensor gradient_in_place(const Tensor& logits, DType dtype) {
  const std::int64_t stride = logits.dim(1) * size_of(DType::kF32) / size_of(dtype);
  return Tensor(logits.raw(), dtype, logits.shape(), {stride, 1});
}

}  // namespace

template <class Chunk>
void LmHead::for_each_chunk(std::int64_t rows, Chunk&& chunk) const {
  const std::int64_t step = chunk_rows(weight_.shape()[0]);
  for (std::int64_t begin = 0; begin < rows; begin += step) chunk(begin, std::min(step, rows - begin));
}

void LmHead::multiply(Context& ctx, const Tensor& x, const Tensor& logits) const {
  ops::matmul(ctx.stream, x, weight_.weight(), logits, {.transpose_b = true});
}

void LmHead::logits(Context& ctx, const Tensor& x, const Tensor& out) const {
  check(ctx.tensor.alone(), "logits of the whole vocabulary exist on a rank alone");
  multiply(ctx, x, out);
}

void LmHead::losses_of(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& losses,
                       const Tensor& dlogits, float scale) const {
  if (ctx.tensor.alone()) {
    ops::cross_entropy(ctx.stream, {.logits = logits,
                                    .targets = targets,
                                    .vocab = vocab_,
                                    .losses = losses,
                                    .dlogits = dlogits,
                                    .scale = scale});
    return;
  }
  const ArenaScope scope(ctx.work);
  const std::int64_t rows = logits.dim(0);
  const Tensor stats = ctx.work.allocate(DType::kF64, {rows, 3});
  const Tensor all_stats = ctx.work.allocate(DType::kF64, {ctx.tensor.part().ranks, rows, 3});
  const ops::CrossEntropyShard shard = {.logits = logits, .targets = targets, .first = first_, .vocab = vocab_};
  ops::cross_entropy_stats(ctx.stream, shard, stats);
  ctx.tensor.gather_values(stats, all_stats);
  ops::cross_entropy_from_stats(ctx.stream, shard, all_stats, losses, dlogits, scale);
}

void LmHead::forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& losses) const {
  const ArenaScope gathered(ctx.work);
  const Tensor all = ctx.tensor.gather(x, ctx.work);
  for_each_chunk(all.dim(0), [&](std::int64_t begin, std::int64_t rows) {
    const ArenaScope scope(ctx.work);
    const Tensor chunk = ctx.work.allocate(DType::kF32, {rows, weight_.shape()[0]});
    multiply(ctx, all.slice(0, begin, rows), chunk);
    losses_of(ctx, chunk, targets.slice(0, begin, rows), losses.slice(0, begin, rows), {}, 1.0F);
  });
}

void LmHead::forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, float scale,
                              const Tensor& losses, const Tensor& dx) const {
  const ArenaScope gathered(ctx.work);
  const Tensor all = ctx.tensor.gather(x, ctx.work);
  // Rows of other ranks that were gathered into ctx.work make room for those of dx.
  const Tensor partial = ctx.tensor.part().sequence_parallel ? all : dx;
  for_each_chunk(all.dim(0), [&](std::int64_t begin, std::int64_t rows) {
    const ArenaScope scope(ctx.work);
    const Tensor chunk = ctx.work.allocate(DType::kF32, {rows, weight_.shape()[0]});
    const Tensor x_rows = all.slice(0, begin, rows);
    multiply(ctx, x_rows, chunk);
    const Tensor dlogits = gradient_in_place(chunk, x.dtype());
    losses_of(ctx, chunk, targets.slice(0, begin, rows), losses.slice(0, begin, rows), dlogits, scale);
    // dW before dx, which may overwrite x.
    ops::matmul(ctx.stream, dlogits, x_rows, weight_.gradient(),
                {.transpose_a = true, .accumulate = ctx.accumulate || begin > 0});
    ops::matmul(ctx.stream, dlogits, weight_.weight(), partial.slice(0, begin, rows), {});
  });
  ctx.tensor.reduce(partial, dx);
}

}  // namespace meshtrain
