#include "model/lm_head.h"

#include <algorithm>
#include <array>

#include "ops/cross_entropy.h"
#include "ops/matmul.h"

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

void LmHead::logits(Context& ctx, const Tensor& x, const Tensor& out) const {
  ops::matmul(ctx.stream, x, weight_.weight(), out, {.transpose_b = true});
}

void LmHead::forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& losses) const {
  const std::int64_t vocab = weight_.shape()[0];
  for_each_chunk(x.dim(0), [&](std::int64_t begin, std::int64_t rows) {
    const ArenaScope scope(ctx.work);
    const Tensor chunk = ctx.work.allocate(DType::kF32, {rows, vocab});
    logits(ctx, x.slice(0, begin, rows), chunk);
    ops::cross_entropy(ctx.stream, {.logits = chunk,
                                    .targets = targets.slice(0, begin, rows),
                                    .vocab = vocab,
                                    .losses = losses.slice(0, begin, rows),
                                    .dlogits = {}});
  });
}

void LmHead::forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, float scale,
                              const Tensor& losses, const Tensor& dx) const {
  const std::int64_t vocab = weight_.shape()[0];
  for_each_chunk(x.dim(0), [&](std::int64_t begin, std::int64_t rows) {
    const ArenaScope scope(ctx.work);
    const Tensor chunk = ctx.work.allocate(DType::kF32, {rows, vocab});
    const Tensor x_rows = x.slice(0, begin, rows);
    logits(ctx, x_rows, chunk);
    const Tensor dlogits = gradient_in_place(chunk, x.dtype());
    ops::cross_entropy(ctx.stream, {.logits = chunk,
                                    .targets = targets.slice(0, begin, rows),
                                    .vocab = vocab,
                                    .losses = losses.slice(0, begin, rows),
                                    .dlogits = dlogits,
                                    .scale = scale});
    // dW before dx, which may overwrite x.
    ops::matmul(ctx.stream, dlogits, x_rows, weight_.gradient(),
                {.transpose_a = true, .accumulate = ctx.accumulate || begin > 0});
    ops::matmul(ctx.stream, dlogits, weight_.weight(), dx.slice(0, begin, rows), {});
  });
}

}  // namespace meshtrain
