// The backward pass after Dao 2023 (FlashAttention-2, algorithm 2): the weights are computed anew from
// lse. Scores are kept transposed, keys by queries: then the weights and the scores' gradients are left
// operands for dv and dk as they are.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_rows.h"

namespace meshtrain::ops::cpu {
namespace {

constexpr std::int64_t kKeys = 128;     // in a tile
constexpr std::int64_t kQueries = 128;  // in a tile
// One task can have all keys of a head, and each product is computed once, while T * D is at most this:
// the task's keys, packed, and the sums for dk and dv stay near the processor.
constexpr std::int64_t kMaxResident = 1 << 18;
// With fewer heads, tasks of a part of the keys or of the queries feed more threads; scores and their
// gradients are then computed twice.
constexpr std::int64_t kMinTasks = 4;
constexpr std::int64_t kKeysInTask = 512;

struct BackwardScratch {
  Scratch k, v, k_transposed, dk, dv;                // of all the task's key blocks
  Scratch q, q_transposed, d_o, d_o_transposed, dq;  // of one query block
  Scratch scores, d_weights, weights, d_scores, d_scores_right, rows;
  std::vector<float> lse, delta;
};

// One kv head and the query heads that share it.
class BackwardTask {
 public:
  BackwardTask(const AttentionBackward& args, Operand operand, BackwardScratch& scratch, std::int64_t batch,
               std::int64_t kv_head)
      : args_(args),
        operand_(operand),
        item_(size_of(operand)),
        scratch_(scratch),
        batch_(batch),
        kv_head_(kv_head),
        group_(args.q.dim(2) / args.k.dim(2)),
        length_(args.q.dim(1)),
        width_(args.q.dim(3)),
        padded_(round_up(width_, kDepthUnit)),
        sums_stride_(round_up(width_, kWidthUnit)) {}

  // dk and dv of keys [begin, end), and with them what these keys add to dq; that is all of dq, and
  // stored, when they are all keys.
  void key_range(std::int64_t begin, std::int64_t end, bool with_dq) {
    const std::int64_t blocks = pieces(end - begin, kKeys);
    reserve_keys(blocks);
    const auto sums_bytes = static_cast<std::size_t>(blocks * kKeys * sums_stride_ * 4);
    std::memset(scratch_.dk.get(static_cast<std::int64_t>(sums_bytes)), 0, sums_bytes);
    std::memset(scratch_.dv.get(static_cast<std::int64_t>(sums_bytes)), 0, sums_bytes);
    for (std::int64_t slot = 0; slot < blocks; ++slot) load_keys(slot, begin + slot * kKeys, end);
    for (std::int64_t h = 0; h < group_; ++h) {
      for (std::int64_t query = begin / kQueries * kQueries; query < length_; query += kQueries) {
        load_queries(kv_head_ * group_ + h, query);
        const std::int64_t seen = std::min(blocks, pieces(query + queries_ - begin, kKeys));
        for (std::int64_t slot = 0; slot < seen; ++slot) {
          weights_and_gradients(slot, begin + slot * kKeys, end);
          add_to_keys(slot);
          if (with_dq) add_to_queries(slot, slot == 0);
        }
        if (with_dq) store_dq();
      }
    }
    for (std::int64_t slot = 0; slot < blocks; ++slot) store_keys(slot, begin + slot * kKeys, end);
  }

  // dq of one block of queries.
  void query_block(std::int64_t head, std::int64_t query) {
    reserve_keys(1);
    load_queries(head, query);
    for (std::int64_t key = 0; key < query + queries_; key += kKeys) {
      load_keys(0, key, length_);
      weights_and_gradients(0, key, length_);
      add_to_queries(0, key == 0);
    }
    store_dq();
  }

 private:
  std::byte* key_rows(Scratch& scratch, std::int64_t slot, std::int64_t blocks = 0) {
    const std::int64_t bytes = kKeys * padded_ * item_;
    return scratch.get<std::byte>(blocks * bytes) + slot * bytes;
  }
  std::byte* transposed_keys(std::int64_t slot, std::int64_t blocks = 0) {
    const std::int64_t bytes = width_ * kKeys * item_;
    return scratch_.k_transposed.get<std::byte>(blocks * bytes) + slot * bytes;
  }
  float* key_sums(Scratch& scratch, std::int64_t slot) {
    return scratch.get<float>(0) + slot * kKeys * sums_stride_;
  }

  void reserve_keys(std::int64_t blocks) {
    key_rows(scratch_.k, 0, blocks);
    key_rows(scratch_.v, 0, blocks);
    transposed_keys(0, blocks);
  }

  void load_keys(std::int64_t slot, std::int64_t key, std::int64_t end) {
    const std::int64_t count = std::min(kKeys, end - key);
    MatrixView k = head_rows(args_.k, batch_, key, kv_head_);
    pack_left(k, count, width_, operand_, key_rows(scratch_.k, slot));
    pack_left(head_rows(args_.v, batch_, key, kv_head_), count, width_, operand_, key_rows(scratch_.v, slot));
    k.transposed = true;
    pack_left(k, width_, count, operand_, transposed_keys(slot));
  }

  void load_queries(std::int64_t head, std::int64_t query) {
    head_ = head;
    query_ = query;
    queries_ = std::min(kQueries, length_ - query);
    const MatrixView q = head_rows(args_.q, batch_, query, head);
    const MatrixView d_o = head_rows(args_.d_o, batch_, query, head);
    pack_queries(q, scratch_.q, scratch_.q_transposed);
    pack_queries(d_o, scratch_.d_o, scratch_.d_o_transposed);
    scratch_.lse.assign(static_cast<std::size_t>(kQueries), 0.0F);
    scratch_.delta.assign(static_cast<std::size_t>(kQueries), 0.0F);
    const MatrixView o = head_rows(args_.o, batch_, query, head);
    row_dots(d_o.data, d_o.stride, o.data, o.stride, o.dtype, queries_, width_, scratch_.delta.data());
    const Tensor& lse = args_.lse;
    const float* const row = lse.data<float>() + batch_ * lse.stride(0) + head * lse.stride(1) + query;
    for (std::int64_t i = 0; i < queries_; ++i) scratch_.lse[static_cast<std::size_t>(i)] = row[i] * kLog2E;
  }

  void pack_queries(MatrixView rows, Scratch& as_is, Scratch& transposed) {
    const RightLayout layout = right_layout(operand_);
    pack_right(rows, queries_, width_, operand_, layout, as_is.get(kQueries * sums_stride_ * item_));
    rows.transposed = true;
    pack_right(rows, width_, queries_, operand_, layout, transposed.get(padded_ * kQueries * item_));
  }

  void weights_and_gradients(std::int64_t slot, std::int64_t key, std::int64_t end) {
    keys_ = std::min(kKeys, end - key);
    ScoreGradients g;
    g.keys = keys_;
    g.width = round_up(queries_, kWidthUnit);
    g.queries = round_up(queries_, kDepthUnit);
    g.first = key - query_;
    g.scale = args_.scale;
    auto* const scores = scratch_.scores.get<float>(kKeys * kQueries * 4);
    auto* const d_weights = scratch_.d_weights.get<float>(kKeys * kQueries * 4);
    multiply_block(operand_, keys_, g.width, padded_, key_rows(scratch_.k, slot), scratch_.q_transposed.get(0),
                   scores, false);
    multiply_block(operand_, keys_, g.width, padded_, key_rows(scratch_.v, slot),
                   scratch_.d_o_transposed.get(0), d_weights, false);
    g.scores = scores;
    g.d_weights = d_weights;
    g.lse = scratch_.lse.data();
    g.delta = scratch_.delta.data();
    g.weights = scratch_.weights.get(kKeys * kQueries * item_);
    g.d_scores = scratch_.d_scores.get(kKeys * kQueries * item_);
    softmax_gradient(g, operand_);
  }

  void add_to_keys(std::int64_t slot) {
    const std::int64_t depth = round_up(queries_, kDepthUnit);
    multiply_block(operand_, keys_, sums_stride_, depth, scratch_.weights.get(0), scratch_.d_o.get(0),
                   key_sums(scratch_.dv, slot), true);
    multiply_block(operand_, keys_, sums_stride_, depth, scratch_.d_scores.get(0), scratch_.q.get(0),
                   key_sums(scratch_.dk, slot), true);
  }

  // Sums dq transposed, [D, queries]: the scores' gradients need only be packed, not transposed.
  void add_to_queries(std::int64_t slot, bool first) {
    const std::int64_t width = round_up(queries_, kWidthUnit);
    const DType dtype = operand_ == Operand::kBF16 ? DType::kBF16 : DType::kF32;
    void* const right = scratch_.d_scores_right.get(kKeys * kQueries * item_);
    pack_right({scratch_.d_scores.get(0), dtype, round_up(queries_, kDepthUnit), false}, keys_, queries_,
               operand_, right_layout(operand_), right);
    multiply_block(operand_, width_, width, round_up(keys_, kDepthUnit), transposed_keys(slot), right,
                   scratch_.dq.get<float>(width_ * kQueries * 4), !first);
  }

  void store_dq() {
    auto* const rows = scratch_.rows.get<float>(kQueries * padded_ * 4);
    const MatrixView sums = {scratch_.dq.get(0), DType::kF32, round_up(queries_, kWidthUnit), true};
    pack_left(sums, queries_, width_, Operand::kF32, rows);
    store_rows(rows, padded_, queries_, width_, head_rows_out(args_.dq, batch_, query_, head_));
  }

  void store_keys(std::int64_t slot, std::int64_t key, std::int64_t end) {
    const std::int64_t count = std::min(kKeys, end - key);
    store_rows(key_sums(scratch_.dk, slot), sums_stride_, count, width_,
               head_rows_out(args_.dk, batch_, key, kv_head_));
    store_rows(key_sums(scratch_.dv, slot), sums_stride_, count, width_,
               head_rows_out(args_.dv, batch_, key, kv_head_));
  }

  const AttentionBackward& args_;
  Operand operand_;
  std::int64_t item_;
  BackwardScratch& scratch_;
  std::int64_t batch_;
  std::int64_t kv_head_;
  std::int64_t group_;
  std::int64_t length_;
  std::int64_t width_;        // of a head
  std::int64_t padded_;       // width_ as a product's depth
  std::int64_t sums_stride_;  // width_ as a product's width
  // The tile at hand.
  std::int64_t head_ = 0;
  std::int64_t query_ = 0;
  std::int64_t queries_ = 0;
  std::int64_t keys_ = 0;
};

}  // namespace

void attention_backward(const AttentionBackward& args, Operand operand, ThreadPool& pool) {
  if (args.q.numel() == 0) return;
  const std::int64_t length = args.q.dim(1);
  const std::int64_t heads = args.q.dim(2);
  const std::int64_t kv_heads = args.k.dim(2);
  const std::int64_t kv_tasks = args.q.dim(0) * kv_heads;
  const auto task_of = [&](std::int64_t index) {
    static thread_local BackwardScratch scratch;
    return BackwardTask(args, operand, scratch, index / kv_heads, index % kv_heads);
  };
  const bool at_once =
      length * args.q.dim(3) <= kMaxResident && (kv_tasks >= kMinTasks || length <= kKeysInTask);
  if (at_once) {
    pool.run(kv_tasks, [&](std::int64_t task) { task_of(task).key_range(0, length, true); });
    return;
  }
  // The longest tasks first: the first keys are seen by all queries, the last queries see all keys.
  const std::int64_t key_tasks = kv_tasks * pieces(length, kKeysInTask);
  const std::int64_t query_blocks = pieces(length, kQueries);
  const std::int64_t query_tasks = args.q.dim(0) * heads * query_blocks;
  pool.run(key_tasks + query_tasks, [&](std::int64_t task) {
    if (task < key_tasks) {
      const std::int64_t begin = task / kv_tasks * kKeysInTask;
      task_of(task % kv_tasks).key_range(begin, std::min(length, begin + kKeysInTask), false);
      return;
    }
    const std::int64_t rest = task - key_tasks;
    const std::int64_t batch = rest % (args.q.dim(0) * heads) / heads;
    const std::int64_t head = rest % heads;
    const std::int64_t block = query_blocks - 1 - rest / (args.q.dim(0) * heads);
    task_of(batch * kv_heads + head / (heads / kv_heads)).query_block(head, block * kQueries);
  });
}

}  // namespace meshtrain::ops::cpu
