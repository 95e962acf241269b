// What attention does to rows of scores between its matrix products.
//
// Exponentials are powers of two: scores are taken times scale * log2(e).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/cpu/pack.h"

namespace meshtrain::ops::cpu {

inline constexpr float kLog2E = 1.44269504F;

// The state of an online softmax (Milakov & Gimelshein 2018, algorithm 3), a value a row.
struct SoftmaxState {
  float* max = nullptr;      // of the scaled scores seen so far, in powers of two
  float* sum = nullptr;      // of 2^(score - max)
  float* rescale = nullptr;  // output: what results of earlier blocks are to be multiplied by
};

// One block of scores[rows, width]: row r counts its first visible[r] columns (at most width; 0 leaves
// the state as it is). Writes 2^(score - max) to weights[rows, weights_width], zeros beyond visible[r].
// Both are contiguous; weights are of the operand's type. `first` starts the state.
void online_softmax(const float* scores, std::int64_t rows, std::int64_t width, const std::int64_t* visible,
                    float scale, bool first, Operand operand, void* weights, std::int64_t weights_width,
                    const SoftmaxState& state);

// x[r, :width] *= factor[r]; the rows are `stride` apart.
void scale_rows(float* x, std::int64_t stride, std::int64_t rows, std::int64_t width, const float* factor);

// Scores and their gradients transposed: a row is a key, a column a query.
struct ScoreGradients {
  std::int64_t keys = 0;
  std::int64_t width = 0;            // of the inputs' rows
  std::int64_t queries = 0;          // of the outputs' rows; at most width
  std::int64_t first = 0;            // key k is seen by the queries from first + k on; the others get zeros
  float scale = 1.0F;                // of the scores
  const float* scores = nullptr;     // [keys, width], before scaling
  const float* d_weights = nullptr;  // [keys, width]: gradient of the softmax's result
  const float* lse = nullptr;        // [queries], in powers of two
  const float* delta = nullptr;      // [queries]: the row sums of do · o
  void* weights = nullptr;           // out [keys, queries]: the softmax's result, of the operand's type
  void* d_scores = nullptr;          // out [keys, queries]: gradient before scaling, of the operand's type
};
void softmax_gradient(const ScoreGradients& g, Operand operand);

// out[r] = sum over width of a[r, :] * b[r, :], both of one dtype.
void row_dots(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride, DType dtype,
              std::int64_t rows, std::int64_t width, float* out);

}  // namespace meshtrain::ops::cpu
