#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_rows.h"

namespace meshtrain::ops::cpu {
namespace {

// A task has about this many rows: positions of all the query heads that share a kv head.
constexpr std::int64_t kRows = 128;
constexpr std::int64_t kKeys = 512;

struct ForwardScratch {
  Scratch q, k, v, scores, weights, sums;
  std::vector<float> max, total, factor;
  std::vector<std::int64_t> visible;
};

// Positions [begin, begin + count) of the query heads of kv head `kv_head`, head by head.
struct QueryBlock {
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

class ForwardTask {
 public:
  ForwardTask(const AttentionForward& args, Operand operand, const QueryBlock& block, ForwardScratch& scratch)
      : args_(args),
        operand_(operand),
        block_(block),
        scratch_(scratch),
        group_(args.q.dim(2) / args.k.dim(2)),
        rows_(group_ * block.count),
        width_(args.q.dim(3)),
        padded_(round_up(width_, kDepthUnit)),
        sums_stride_(round_up(width_, kWidthUnit)),
        offset_(args.k.dim(1) - args.q.dim(1)) {
    const auto rows = static_cast<std::size_t>(rows_);
    scratch_.max.resize(rows);
    scratch_.total.resize(rows);
    scratch_.factor.resize(rows);
    scratch_.visible.resize(rows);
  }

  void compute() {
    auto* const q = scratch_.q.get<std::byte>(rows_ * padded_ * size_of(operand_));
    for (std::int64_t h = 0; h < group_; ++h) {
      pack_left(head_rows(args_.q, block_.batch, block_.begin, block_.kv_head * group_ + h), block_.count,
                width_, operand_, q + h * block_.count * padded_ * size_of(operand_));
    }
    auto* const sums = scratch_.sums.get<float>(rows_ * sums_stride_ * 4);
    const std::int64_t keys = block_.begin + block_.count + offset_;
    for (std::int64_t key = 0; key < keys; key += kKeys) {
      add_keys(q, key, std::min(kKeys, keys - key), sums);
    }
    finish(sums);
  }

 private:
  // Adds what keys [first, first + count) give to the rows.
  void add_keys(const void* q, std::int64_t first, std::int64_t count, float* sums) {
    const RightLayout layout = right_layout(operand_);
    const std::int64_t scores_width = round_up(count, kWidthUnit);
    const std::int64_t depth = round_up(count, kDepthUnit);
    void* const k = scratch_.k.get(padded_ * scores_width * size_of(operand_));
    void* const v = scratch_.v.get(depth * sums_stride_ * size_of(operand_));
    auto* const scores = scratch_.scores.get<float>(rows_ * scores_width * 4);
    void* const weights = scratch_.weights.get(rows_ * depth * size_of(operand_));

    MatrixView k_transposed = head_rows(args_.k, block_.batch, first, block_.kv_head);
    k_transposed.transposed = true;
    pack_right(k_transposed, width_, count, operand_, layout, k);
    multiply_block(operand_, rows_, scores_width, padded_, q, k, scores, false);

    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int64_t last = block_.begin + r % block_.count + offset_;
      scratch_.visible[static_cast<std::size_t>(r)] = std::clamp<std::int64_t>(last + 1 - first, 0, count);
    }
    online_softmax(scores, rows_, scores_width, scratch_.visible.data(), args_.scale, first == 0, operand_,
                   weights, depth, {scratch_.max.data(), scratch_.total.data(), scratch_.factor.data()});
    if (first > 0) scale_rows(sums, sums_stride_, rows_, sums_stride_, scratch_.factor.data());

    pack_right(head_rows(args_.v, block_.batch, first, block_.kv_head), count, width_, operand_, layout, v);
    multiply_block(operand_, rows_, sums_stride_, depth, weights, v, sums, first > 0);
  }

  void finish(float* sums) {
    for (std::size_t r = 0; r < scratch_.total.size(); ++r) scratch_.factor[r] = 1.0F / scratch_.total[r];
    scale_rows(sums, sums_stride_, rows_, width_, scratch_.factor.data());
    for (std::int64_t h = 0; h < group_; ++h) {
      const std::int64_t head = block_.kv_head * group_ + h;
      store_rows(sums + h * block_.count * sums_stride_, sums_stride_, block_.count, width_,
                 head_rows_out(args_.o, block_.batch, block_.begin, head));
      if (args_.lse.defined()) store_lse(head, h * block_.count);
    }
  }

  void store_lse(std::int64_t head, std::int64_t first_row) {
    constexpr float kLn2 = 0.693147181F;
    const Tensor& lse = args_.lse;
    float* const out = lse.data<float>() + block_.batch * lse.stride(0) + head * lse.stride(1) + block_.begin;
    for (std::int64_t i = 0; i < block_.count; ++i) {
      const auto r = static_cast<std::size_t>(first_row + i);
      out[i] = scratch_.max[r] * kLn2 + std::log(scratch_.total[r]);
    }
  }

  const AttentionForward& args_;
  Operand operand_;
  QueryBlock block_;
  ForwardScratch& scratch_;
  std::int64_t group_;
  std::int64_t rows_;
  std::int64_t width_;        // of a head
  std::int64_t padded_;       // width_ as a product's depth
  std::int64_t sums_stride_;  // width_ as a product's width
  std::int64_t offset_;       // keys before the first query
};

}  // namespace

void attention_forward(const AttentionForward& args, Operand operand, ThreadPool& pool) {
  const std::int64_t kv_heads = args.k.dim(2);
  const std::int64_t queries = args.q.dim(1);
  if (args.q.numel() == 0) return;
  const std::int64_t positions = std::max<std::int64_t>(1, kRows / (args.q.dim(2) / kv_heads));
  const std::int64_t blocks = (queries + positions - 1) / positions;
  const std::int64_t heads = args.q.dim(0) * kv_heads;
  pool.run(blocks * heads, [&](std::int64_t task) {
    static thread_local ForwardScratch scratch;
    QueryBlock block;
    block.batch = task % heads / kv_heads;
    block.kv_head = task % heads % kv_heads;
    // The last positions see the most keys: the longest tasks go first.
    block.begin = (blocks - 1 - task / heads) * positions;
    block.count = std::min(positions, queries - block.begin);
    ForwardTask(args, operand, block, scratch).compute();
  });
}

}  // namespace meshtrain::ops::cpu
