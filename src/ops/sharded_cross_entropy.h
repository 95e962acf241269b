// Cross-entropy of rows whose vocabulary is cut into shards, in two steps around one exchange of three numbers
// a row: so that no rank ever holds all logits. Equals ops/cross_entropy.h but for the rounding of sums, and to
// the bit where there is one shard.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

struct CrossEntropyShard {
  Tensor logits;           // fp32 [R, W]: columns [first, first + W) of the vocabulary
  Tensor targets;          // int32 [R], of the whole vocabulary, or kIgnoredTarget
  std::int64_t first = 0;  // may lie at or beyond vocab
  // Columns of the whole. What reaches beyond is padding: not in the softmax, gradient 0.
  std::int64_t vocab = 0;
};

// stats fp64 [R, 3]: the largest logit of the shard (-inf where it has no column), the sum of e^(x - largest),
// 0 where that is -inf, and the logit of the target (0 where the target lies in another shard). A row whose
// target is ignored counts as one without columns. A NaN or +inf makes the sum NaN.
void cross_entropy_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& stats);

// all_stats fp64 [shards, R, 3], in the order of columns. losses: fp32 [R], the same on every rank. dlogits:
// optional, as in CrossEntropy: [R, W], scale * (softmax - onehot) of this shard's columns; may alias logits.
void cross_entropy_from_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& all_stats,
                              const Tensor& losses, const Tensor& dlogits, float scale);

}  // namespace meshtrain::ops
