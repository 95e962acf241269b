// Cross-entropy of a chunk of rows, with its gradient. The caller walks the rows of a batch chunk by
// chunk, so that the whole batch's logits never exist.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// A target with this value is masked: loss 0, gradient 0.
inline constexpr std::int32_t kIgnoredTarget = -1;

struct CrossEntropy {
  Tensor logits;   // fp32 [R, V]
  Tensor targets;  // int32 [R]
  // Columns from here on are padding of the vocabulary: not part of the softmax, gradient 0.
  std::int64_t vocab = 0;
  Tensor losses;  // output, fp32 [R]: -log softmax(logits)[target]
  // Optional output [R, V] of fp32, bf16 or fp16, rows strided: scale * (softmax - onehot). May alias
  // logits: a narrower dtype then starts each row where the fp32 row starts.
  Tensor dlogits = {};
  float scale = 1.0F;
};
void cross_entropy(Stream& stream, const CrossEntropy& args);

}  // namespace meshtrain::ops
