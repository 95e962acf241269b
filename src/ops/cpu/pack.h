// Copies of operand blocks in the layouts that the block products of gemm.h read, and the way back
// from their fp32 results. Conversions to a wider type are exact; padding is zero.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/round_up.h"

namespace meshtrain::ops::cpu {

// The element type inside a block product.
enum class Operand : std::uint8_t { kF32, kBF16 };

constexpr std::int64_t size_of(Operand operand) {
  return operand == Operand::kF32 ? 4 : 2;
}

// How a packed right operand [depth, width] lies in memory.
enum class RightLayout : std::uint8_t {
  kRows,    // row-major
  kPanels,  // panels of kWidthUnit columns; in a panel, for each step of depth (a pair of rows for
            // bf16, interleaved; one row for fp32) the panel's columns
};

// Packed depths and widths are multiples of these, so that one block product serves many shapes.
inline constexpr std::int64_t kDepthUnit = 32;
inline constexpr std::int64_t kWidthUnit = 64;

// A matrix in memory: fp32, bf16 or fp16. Element (r, c) is at data[r * stride + c], or, when
// transposed, at data[c * stride + r].
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t stride = 0;
  bool transposed = false;

  // The view whose (0, 0) is this one's (row, col).
  MatrixView at(std::int64_t row, std::int64_t col) const;
};

// out: row-major [rows, round_up(depth, kDepthUnit)]. A bf16 operand takes bf16 matrices only.
void pack_left(const MatrixView& a, std::int64_t rows, std::int64_t depth, Operand operand, void* out);

// out: [round_up(depth, kDepthUnit), round_up(width, kWidthUnit)] in `layout`.
void pack_right(const MatrixView& b, std::int64_t depth, std::int64_t width, Operand operand,
                RightLayout layout, void* out);

// Where a product's rows go.
struct Destination {
  void* data = nullptr;  // row r begins at element r * stride
  DType dtype = DType::kF32;
  std::int64_t stride = 0;
  bool accumulate = false;     // add to what is there
  const void* bias = nullptr;  // a value a column, or none
  DType bias_dtype = DType::kF32;
  float factor = 1.0F;  // applied to the source before the bias
};

// Rounds source[rows, width] (row-major, rows source_stride apart) once into the destination.
void store_rows(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t width,
                const Destination& destination);

}  // namespace meshtrain::ops::cpu
