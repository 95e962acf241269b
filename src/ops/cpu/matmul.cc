#include "ops/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

namespace meshtrain::ops::cpu {
namespace {

// How the result is cut. A task owns rows x cols of it; it packs depth x cols of b at a time and
// multiplies `block` rows of a by that.
struct Tiling {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;
  std::int64_t block = 0;
  bool direct = false;  // a is multiplied where it lies, without packing
};

std::int64_t pieces(std::int64_t total, std::int64_t piece) {
  return (total + piece - 1) / piece;
}

// The size of equal pieces, a multiple of `unit`, as few as `limit` allows.
std::int64_t even_piece(std::int64_t total, std::int64_t limit, std::int64_t unit) {
  return round_up(pieces(total, pieces(total, limit)), unit);
}

// One row of a block is at most this long, so that a block and b's part stay in the second-level cache;
// longer where that saves packing a.
constexpr std::int64_t kPackedRowBytes = 2048;
constexpr std::int64_t kDirectRowBytes = 16384;
constexpr std::int64_t kMaxBlock = 256;
// Of a task's sums, kept in fp32 while several pieces of depth are added up.
constexpr std::int64_t kMaxSums = 256 * 768;
constexpr std::int64_t kRowUnit = 16;
constexpr std::array<std::int64_t, 7> kRows = {64, 128, 192, 256, 384, 512, 1024};
constexpr std::array<std::int64_t, 7> kCols = {64, 128, 192, 256, 384, 512, 768};

// What packing an element costs, and reading it where it lies, in floating-point operations of a product.
constexpr double kPackCost = 64;
constexpr double kReadCost = 8;
// Tiles are chosen to suit this many threads as well as one.
constexpr std::int64_t kThreads = 16;

double cost_of(const MatmulCall& call, const Tiling& t) {
  const std::int64_t row_tiles = pieces(call.rows, t.rows);
  const std::int64_t col_tiles = pieces(call.cols, t.cols);
  const double task = static_cast<double>(t.rows * t.cols * 2) + static_cast<double>(t.cols) * kPackCost +
                      static_cast<double>(t.rows) * (t.direct ? kReadCost : kPackCost);
  const std::int64_t tasks = row_tiles * col_tiles;
  return task * static_cast<double>(tasks + pieces(tasks, kThreads) * kThreads);
}

// From the shape alone: neither the result nor the work depends on the number of threads.
Tiling tiling_for(const MatmulCall& call, Operand operand) {
  Tiling best;
  const std::int64_t row_bytes = call.depth * size_of(operand);
  best.direct = !call.a.transposed && call.a.stride == call.depth && call.depth % kDepthUnit == 0 &&
                size_of(operand) == meshtrain::size_of(call.a.dtype) && row_bytes <= kDirectRowBytes;
  best.depth =
      best.direct ? call.depth : even_piece(call.depth, kPackedRowBytes / size_of(operand), kDepthUnit);
  double least = std::numeric_limits<double>::infinity();
  for (const std::int64_t rows : kRows) {
    for (const std::int64_t cols : kCols) {
      Tiling t = best;
      t.rows = even_piece(call.rows, rows, kRowUnit);
      t.cols = even_piece(call.cols, cols, kWidthUnit);
      if (t.depth < call.depth && t.rows * t.cols > kMaxSums) continue;
      const double cost = cost_of(call, t);
      if (cost < least) {
        least = cost;
        best.rows = t.rows;
        best.cols = t.cols;
      }
    }
  }
  best.block = even_piece(best.rows, kMaxBlock, kRowUnit);
  return best;
}

struct TileScratch {
  Scratch a, b, sums;
};

class Tile {
 public:
  Tile(const MatmulCall& call, Operand operand, const Tiling& tiling, std::int64_t row, std::int64_t col)
      : call_(call),
        operand_(operand),
        tiling_(tiling),
        row_(row),
        col_(col),
        rows_(std::min(tiling.rows, call.rows - row)),
        cols_(std::min(tiling.cols, call.cols - col)),
        width_(round_up(cols_, kWidthUnit)) {}

  void compute(TileScratch& scratch) const {
    const std::int64_t item = size_of(operand_);
    // With one piece of depth each block of rows is finished at once, and the next reuses its memory.
    const bool one_piece = tiling_.depth >= call_.depth;
    void* const b = scratch.b.get(tiling_.depth * width_ * item);
    auto* const sums = scratch.sums.get<float>((one_piece ? tiling_.block : rows_) * width_ * 4);
    for (std::int64_t k = 0; k < call_.depth; k += tiling_.depth) {
      const std::int64_t depth = std::min(tiling_.depth, call_.depth - k);
      pack_right(call_.b.at(k, col_), depth, cols_, operand_, right_layout(operand_), b);
      for (std::int64_t r = 0; r < rows_; r += tiling_.block) {
        const std::int64_t m = std::min(tiling_.block, rows_ - r);
        float* const c = one_piece ? sums : sums + r * width_;
        const void* const a = left(r, m, k, depth, scratch.a);
        multiply_block(operand_, m, width_, round_up(depth, kDepthUnit), a, b, c, k > 0);
        if (k + depth == call_.depth) store_rows(c, width_, m, cols_, destination(r));
      }
    }
  }

 private:
  const void* left(std::int64_t r, std::int64_t m, std::int64_t k, std::int64_t depth, Scratch& scratch) const {
    const MatrixView a = call_.a.at(row_ + r, k);
    if (tiling_.direct) return a.data;
    void* const packed = scratch.get(m * round_up(depth, kDepthUnit) * size_of(operand_));
    pack_left(a, m, depth, operand_, packed);
    return packed;
  }

  Destination destination(std::int64_t r) const {
    Destination d = call_.c;
    const std::int64_t offset = (row_ + r) * d.stride + col_;
    d.data = static_cast<std::byte*>(d.data) + offset * meshtrain::size_of(d.dtype);
    if (d.bias != nullptr) {
      d.bias = static_cast<const std::byte*>(d.bias) + col_ * meshtrain::size_of(d.bias_dtype);
    }
    return d;
  }

  const MatmulCall& call_;
  Operand operand_;
  const Tiling& tiling_;
  std::int64_t row_, col_;
  std::int64_t rows_, cols_, width_;
};

}  // namespace

void matmul(const MatmulCall& call, Operand operand, ThreadPool& pool) {
  if (call.rows == 0 || call.cols == 0) return;
  if (call.depth == 0) {  // sums of nothing
    const std::vector<float> zeros(static_cast<std::size_t>(call.cols));
    store_rows(zeros.data(), 0, call.rows, call.cols, call.c);
    return;
  }
  const Tiling tiling = tiling_for(call, operand);
  const std::int64_t row_tiles = pieces(call.rows, tiling.rows);
  const std::int64_t col_tiles = pieces(call.cols, tiling.cols);
  pool.run(row_tiles * col_tiles, [&](std::int64_t task) {
    static thread_local TileScratch scratch;
    // Down the columns first: tasks that run together share their part of b, the weights.
    const Tile tile(call, operand, tiling, task % row_tiles * tiling.rows, task / row_tiles * tiling.cols);
    tile.compute(scratch);
  });
}

}  // namespace meshtrain::ops::cpu
