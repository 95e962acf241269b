#include "ops/embedding.h"

#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

void check_tokens(const Tensor& tokens, std::int64_t rows) {
  check(tokens.contiguous() && tokens.dtype() == DType::kI32 && tokens.numel() == rows,
        "embedding: tokens must be contiguous int32, one a row");
}

// Of a table, from rows of dout.
void check_gradient(const Tensor& dout, const Tensor& gradient) {
  check(gradient.rank() == 2 && gradient.dim(1) == dout.shape().back(),
        "embedding: the gradient must be a table of dout's width");
  check(is_gradient_of(gradient, dout.dtype()), "embedding: the gradient must be fp32 or of dout's dtype");
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out,
                       std::int64_t first_id) {
  check(out.rank() >= 1 && is_float(out.dtype()), "embedding: out must be rows of fp32, bf16 or fp16");
  const std::int64_t rows = rows_of(out);
  const std::int64_t width = out.shape().back();
  check_tokens(tokens, rows);
  check(table.rank() == 2 && first_id >= 0, "embedding: table must be [V, H] of ids that are not negative");
  check_matrix(table, out.dtype(), table.dim(0), width, "embedding: table must be [V, H] of out's dtype");
  std::int64_t bytes = tokens.bytes() + 2 * out.bytes();
  if (positions.defined()) {
    check(positions.rank() == 2, "embedding: positions must be [context, H]");
    check_matrix(positions, out.dtype(), positions.dim(0), width,
                 "embedding: positions must be [context, H] of out's dtype");
    check(seq > 0 && first_position >= 0 && first_position + std::min(seq, rows) <= positions.dim(0),
          "embedding: positions beyond the table");
    bytes += std::min(seq, rows) * width * size_of(out.dtype());
  }
  run(stream, {.bytes = bytes},
      [&] { cpu::embedding_forward(stream, tokens, table, positions, seq, first_position, out, first_id); });
}

void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable,
                        std::int64_t first_id) {
  check(dout.rank() >= 1 && is_float(dout.dtype()), "embedding: dout must be rows of fp32, bf16 or fp16");
  const std::int64_t rows = rows_of(dout);
  check_tokens(tokens, rows);
  check_gradient(dout, dtable);
  check(first_id >= 0, "embedding: the gradient must be of ids that are not negative");
  const std::int64_t touched = std::min(rows, dtable.dim(0)) * dtable.dim(1) * size_of(dtable.dtype());
  run(stream, {.bytes = tokens.bytes() + dout.bytes() + 2 * touched},
      [&] { cpu::embedding_backward(stream, tokens, dout, dtable, first_id); });
}

void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions) {
  check(dout.rank() >= 1 && is_float(dout.dtype()), "embedding: dout must be rows of fp32, bf16 or fp16");
  check_gradient(dout, dpositions);
  const std::int64_t touched = std::min(seq, rows_of(dout));
  check(seq > 0 && touched <= dpositions.dim(0), "embedding: positions beyond the table");
  run(stream, {.bytes = dout.bytes() + 2 * touched * dpositions.dim(1) * size_of(dpositions.dtype())},
      [&] { cpu::position_backward(stream, dout, seq, dpositions); });
}

}  // namespace meshtrain::ops
