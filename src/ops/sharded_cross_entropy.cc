#include "ops/sharded_cross_entropy.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

constexpr std::int64_t kStats = 3;

void check_shard(const CrossEntropyShard& shard) {
  check(shard.logits.rank() == 2 && shard.logits.dtype() == DType::kF32,
        "sharded cross_entropy: logits must be fp32 [R, W]");
  check(shard.first >= 0 && shard.vocab > 0,
        "sharded cross_entropy: columns before the first, or no vocabulary");
  check_vector(shard.targets, DType::kI32, shard.logits.dim(0),
               "sharded cross_entropy: targets must be int32 [R]");
}

}  // namespace

void cross_entropy_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& stats) {
  check_shard(shard);
  check_matrix(stats, DType::kF64, shard.logits.dim(0), kStats,
               "cross_entropy_stats: stats must be fp64 [R, 3]");
  check(stats.contiguous(), "cross_entropy_stats: stats must be contiguous");
  run(stream, {.bytes = shard.logits.bytes() + shard.targets.bytes() + stats.bytes()},
      [&] { cpu::cross_entropy_stats(stream, shard, stats); });
}

void cross_entropy_from_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& all_stats,
                              const Tensor& losses, const Tensor& dlogits, float scale) {
  check_shard(shard);
  const std::int64_t rows = shard.logits.dim(0);
  check(all_stats.rank() == 3 && all_stats.dtype() == DType::kF64 && all_stats.contiguous() &&
            all_stats.dim(0) > 0 && all_stats.dim(1) == rows && all_stats.dim(2) == kStats,
        "cross_entropy_from_stats: all_stats must be contiguous fp64 [shards, R, 3]");
  check_vector(losses, DType::kF32, rows, "cross_entropy_from_stats: losses must be fp32 [R]");
  std::int64_t bytes = shard.targets.bytes() + all_stats.bytes() + losses.bytes();
  if (dlogits.defined()) {
    check(is_float(dlogits.dtype()), "cross_entropy_from_stats: dlogits must be fp32, bf16 or fp16");
    check_matrix(dlogits, dlogits.dtype(), rows, shard.logits.dim(1),
                 "cross_entropy_from_stats: dlogits must be like logits");
    bytes += shard.logits.bytes() + dlogits.bytes();
  }
  run(stream, {.bytes = bytes},
      [&] { cpu::cross_entropy_from_stats(stream, shard, all_stats, losses, dlogits, scale); });
}

}  // namespace meshtrain::ops
