#include "ops/cpu/matmul.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace meshtrain::ops::cpu {
namespace {

// How the rows of a reach a block product.
enum class Left : std::uint8_t {
  kSlab,     // packed by all threads together, each element once
  kInPlace,  // where they lie: contiguous, whole rows of the operand's type
  kByTile,   // the same, but to be widened: packed by the task that multiplies them, near its processor
};

// How a product is cut, by its shape alone: neither the result nor the work depends on the threads.
//
// A block of the result, rows x cols, is computed from slabs of the operands, `depth` deep. The threads
// first pack a slab together, so that each element is packed once, then share out the block's tiles.
struct Blocking {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;
  std::int64_t tile_rows = 0;
  std::int64_t tile_cols = 0;
  Left left = Left::kSlab;
  std::int64_t task_tiles = 1;  // side by side, that one task computes
};

// A row of a slab is at most this long, so that a tile's operands stay near the processor; longer where
// that saves packing a.
constexpr std::int64_t kPackedRowBytes = 8192;
constexpr std::int64_t kWholeRowBytes = 16384;
// Of one packed operand's slab.
constexpr std::int64_t kSlabBytes = 8 << 20;
// Of a block, when its sums are kept in fp32 from one slab to the next.
constexpr std::int64_t kMaxSums = 1 << 20;
constexpr std::int64_t kMaxTile = 256;
constexpr std::int64_t kRowUnit = 16;
// Tiles are made smaller, to a quarter, while a block has fewer: enough to feed many threads evenly.
constexpr std::int64_t kTiles = 48;

// The size of equal pieces, a multiple of `unit`, as few as `limit` allows.
std::int64_t even_piece(std::int64_t total, std::int64_t limit, std::int64_t unit) {
  return round_up(pieces(total, pieces(total, std::max(limit, unit))), unit);
}

Blocking blocking_for(const MatmulCall& call, Operand operand) {
  Blocking b;
  const std::int64_t item = size_of(operand);
  const bool whole_rows = !call.a.transposed && call.a.stride == call.depth && call.depth % kDepthUnit == 0 &&
                          call.depth * item <= kWholeRowBytes;
  if (whole_rows) b.left = meshtrain::size_of(call.a.dtype) == item ? Left::kInPlace : Left::kByTile;
  b.depth = whole_rows ? call.depth : even_piece(call.depth, kPackedRowBytes / item, kDepthUnit);
  const std::int64_t slab = kSlabBytes / (b.depth * item);
  b.cols = even_piece(call.cols, slab, kWidthUnit);
  b.rows = whole_rows ? call.rows : even_piece(call.rows, slab, kRowUnit);
  if (b.depth < call.depth) {
    b.cols = std::min(b.cols, even_piece(call.cols, 1024, kWidthUnit));
    b.rows = std::min(b.rows, even_piece(call.rows, kMaxSums / b.cols, kRowUnit));
  }
  std::int64_t tile_rows = kMaxTile;
  std::int64_t tile_cols = kMaxTile;
  while (tile_cols > kMaxTile / 4 && pieces(b.rows, tile_rows) * pieces(b.cols, tile_cols) < kTiles) {
    (tile_rows == tile_cols ? tile_rows : tile_cols) /= 2;
  }
  b.tile_rows = even_piece(b.rows, tile_rows, kRowUnit);
  b.tile_cols = even_piece(b.cols, tile_cols, kWidthUnit);
  if (b.left == Left::kByTile) {
    b.task_tiles =
        std::max<std::int64_t>(1, pieces(b.rows, b.tile_rows) * pieces(b.cols, b.tile_cols) / (2 * kTiles));
    // A task that multiplies its rows by few of many columns would spend its time packing them.
    if (b.task_tiles * b.tile_cols < std::min(b.cols, kMaxTile)) {
      b.left = Left::kSlab;
      b.task_tiles = 1;
      b.rows = even_piece(call.rows, slab, kRowUnit);
      b.tile_rows = even_piece(b.rows, b.tile_rows, kRowUnit);
    }
  }
  return b;
}

// Shared by the threads of one product.
struct SlabScratch {
  Scratch a, b, sums;
};

class BlockedProduct {
 public:
  BlockedProduct(const MatmulCall& call, Operand operand, ThreadPool& pool, SlabScratch& scratch)
      : call_(call),
        operand_(operand),
        pool_(pool),
        blocking_(blocking_for(call, operand)),
        padded_(round_up(blocking_.depth, kDepthUnit)) {
    const std::int64_t rows = pieces(blocking_.rows, blocking_.tile_rows) * blocking_.tile_rows;
    const std::int64_t cols = pieces(blocking_.cols, blocking_.tile_cols) * blocking_.tile_cols;
    b_ = scratch.b.get<std::byte>(padded_ * cols * size_of(operand));
    if (blocking_.left == Left::kSlab) a_ = scratch.a.get<std::byte>(rows * padded_ * size_of(operand));
    if (blocking_.depth < call.depth) sums_ = scratch.sums.get<float>(rows * cols * 4);
  }

  void compute() {
    for (col_ = 0; col_ < call_.cols; col_ += blocking_.cols) {
      cols_ = std::min(blocking_.cols, call_.cols - col_);
      for (row_ = 0; row_ < call_.rows; row_ += blocking_.rows) {
        rows_ = std::min(blocking_.rows, call_.rows - row_);
        for (first_ = 0; first_ < call_.depth; first_ += blocking_.depth) {
          depth_ = std::min(blocking_.depth, call_.depth - first_);
          pack_slab();
          multiply_slab();
        }
      }
    }
  }

 private:
  std::byte* left(std::int64_t row) const {
    return a_ + row * round_up(depth_, kDepthUnit) * size_of(operand_);
  }
  std::byte* right(std::int64_t col) const {
    return b_ + col * round_up(depth_, kDepthUnit) * size_of(operand_);
  }

  void pack_slab() {
    // With a single slab b stays as packed for the blocks above.
    const bool with_b = row_ == 0 || blocking_.depth < call_.depth;
    const std::int64_t col_tiles = with_b ? pieces(cols_, blocking_.tile_cols) : 0;
    const std::int64_t row_tiles = blocking_.left == Left::kSlab ? pieces(rows_, blocking_.tile_rows) : 0;
    pool_.run(col_tiles + row_tiles, [&](std::int64_t task) {
      if (task < col_tiles) {
        const std::int64_t col = task * blocking_.tile_cols;
        pack_right(call_.b.at(first_, col_ + col), depth_, std::min(blocking_.tile_cols, cols_ - col), operand_,
                   right_layout(operand_), right(col));
      } else {
        const std::int64_t row = (task - col_tiles) * blocking_.tile_rows;
        pack_left(call_.a.at(row_ + row, first_), std::min(blocking_.tile_rows, rows_ - row), depth_, operand_,
                  left(row));
      }
    });
  }

  void multiply_slab() {
    const std::int64_t row_tiles = pieces(rows_, blocking_.tile_rows);
    const std::int64_t col_tiles = pieces(cols_, blocking_.tile_cols);
    const std::int64_t task_tiles = blocking_.task_tiles;
    // Down the columns first: tiles that are computed together share their part of b.
    pool_.run(row_tiles * pieces(col_tiles, task_tiles), [&](std::int64_t task) {
      const std::int64_t row_tile = task % row_tiles;
      const std::int64_t first = task / row_tiles * task_tiles;
      const void* const a = left_tile(row_tile * blocking_.tile_rows);
      for (std::int64_t tile = first; tile < std::min(first + task_tiles, col_tiles); ++tile) {
        multiply_tile(a, row_tile * blocking_.tile_rows, tile * blocking_.tile_cols,
                      tile * row_tiles + row_tile);
      }
    });
  }

  // The rows of a tile as the product reads them.
  const void* left_tile(std::int64_t row) const {
    if (blocking_.left == Left::kSlab) return left(row);
    const MatrixView rows = call_.a.at(row_ + row, 0);
    if (blocking_.left == Left::kInPlace) return rows.data;
    static thread_local Scratch own;
    void* const packed = own.get(blocking_.tile_rows * depth_ * size_of(operand_));
    pack_left(rows, std::min(blocking_.tile_rows, rows_ - row), depth_, operand_, packed);
    return packed;
  }

  void multiply_tile(const void* a, std::int64_t row, std::int64_t col, std::int64_t index) const {
    static thread_local Scratch own;
    const std::int64_t rows = std::min(blocking_.tile_rows, rows_ - row);
    const std::int64_t cols = std::min(blocking_.tile_cols, cols_ - col);
    const std::int64_t width = round_up(cols, kWidthUnit);
    const std::int64_t size = blocking_.tile_rows * blocking_.tile_cols;
    float* const sums = sums_ != nullptr ? sums_ + index * size : own.get<float>(size * 4);
    multiply_block(operand_, rows, width, round_up(depth_, kDepthUnit), a, right(col), sums, first_ > 0);
    if (first_ + depth_ == call_.depth)
      store_rows(sums, width, rows, cols, destination(row_ + row, col_ + col));
  }

  Destination destination(std::int64_t row, std::int64_t col) const {
    Destination d = call_.c;
    d.data = static_cast<std::byte*>(d.data) + (row * d.stride + col) * meshtrain::size_of(d.dtype);
    if (d.bias != nullptr) {
      d.bias = static_cast<const std::byte*>(d.bias) + col * meshtrain::size_of(d.bias_dtype);
    }
    return d;
  }

  const MatmulCall& call_;
  Operand operand_;
  ThreadPool& pool_;
  Blocking blocking_;
  std::int64_t padded_;
  std::byte* a_ = nullptr;
  std::byte* b_ = nullptr;
  float* sums_ = nullptr;  // of the block's tiles, one after the other, where there is more than one slab
  // The block and the slab at hand.
  std::int64_t row_ = 0, rows_ = 0;
  std::int64_t col_ = 0, cols_ = 0;
  std::int64_t first_ = 0, depth_ = 0;
};

}  // namespace

void matmul(const MatmulCall& call, Operand operand, ThreadPool& pool) {
  if (call.rows == 0 || call.cols == 0) return;
  if (call.depth == 0) {  // sums of nothing
    const std::vector<float> zeros(static_cast<std::size_t>(call.cols));
    store_rows(zeros.data(), 0, call.rows, call.cols, call.c);
    return;
  }
  static thread_local SlabScratch scratch;
  BlockedProduct(call, operand, pool, scratch).compute();
}

}  // namespace meshtrain::ops::cpu
