#include "ops/sharded_cross_entropy.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sharded_cross_entropy.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/cross_entropy-inl.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"

#ifndef MESHTRAIN_OPS_CPU_SHARDED_CROSS_ENTROPY_CC_
#define MESHTRAIN_OPS_CPU_SHARDED_CROSS_ENTROPY_CC_
namespace meshtrain::ops::cpu {
namespace {

struct Shard {
  explicit Shard(const CrossEntropyShard& args)
      : logits(args.logits),
        targets(args.targets.data<std::int32_t>()),
        first(args.first),
        columns(std::clamp<std::int64_t>(args.vocab - args.first, 0, args.logits.dim(1))) {}
  bool holds(std::int32_t target) const { return target >= first && target - first < columns; }

  Rows logits;
  const std::int32_t* targets;
  std::int64_t first;
  std::int64_t columns;  // those that are not padding
};

// [shards, rows, 3]
struct AllStats {
  const double* row(std::int64_t shard, std::int64_t r) const { return data + (shard * rows + r) * 3; }

  const double* data;
  std::int64_t shards;
  std::int64_t rows;
};

struct Results {
  float* losses;
  Rows dlogits;
  float scale;
};

}  // namespace
}  // namespace meshtrain::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

// Of the whole row, added up in the order of shards. One shard alone is what it was, to the bit.
Denominator whole_denominator(const AllStats& all, std::int64_t r) {
  Denominator d;
  for (std::int64_t s = 0; s < all.shards; ++s) d.high = std::max(d.high, static_cast<float>(all.row(s, r)[0]));
  for (std::int64_t s = 0; s < all.shards; ++s) {
    d.sum += shifted(all.row(s, r)[1], shift_of(static_cast<float>(all.row(s, r)[0])), d.shift());
  }
  return d;
}

// All shards but that of the target have 0.
double target_logit(const AllStats& all, std::int64_t r) {
  double logit = 0.0;
  for (std::int64_t s = 0; s < all.shards; ++s) logit += all.row(s, r)[2];
  return logit;
}

template <class T>
void rows_from_stats(const Shard& shard, const AllStats& all, const Results& to, std::int64_t begin,
                     std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t target = shard.targets[r];
    T* gradient = to.dlogits.defined() ? to.dlogits.row<T>(r) : nullptr;
    if (target == kIgnoredTarget) {
      to.losses[r] = 0.0F;
      if (gradient != nullptr) std::fill_n(gradient, shard.logits.width(), T(0.0F));
      continue;
    }
    const Denominator d = whole_denominator(all, r);
    const double exact_loss = loss_of(d, target_logit(all, r));
    to.losses[r] = static_cast<float>(exact_loss);
    if (gradient == nullptr) continue;
    write_gradient(shard.logits.row<float>(r), d, to.scale, shard.columns, shard.logits.width(), gradient);
    if (shard.holds(target)) gradient[target - shard.first] = T(target_gradient(exact_loss, to.scale));
  }
}

}  // namespace

void StatsOfRows(const Shard& shard, double* stats, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t target = shard.targets[r];
    const float* x = shard.logits.row<float>(r);
    const Denominator d = target == kIgnoredTarget ? Denominator{} : denominator(x, shard.columns);
    stats[3 * r] = static_cast<double>(d.high);
    stats[3 * r + 1] = d.sum;
    stats[3 * r + 2] = shard.holds(target) ? static_cast<double>(x[target - shard.first]) : 0.0;
  }
}

void RowsFromStats(DType dlogits, const Shard& shard, const AllStats& all, const Results& to,
                   std::int64_t begin, std::int64_t end) {
  with_float_type(dlogits, [&]<class T>(T) HWY_ATTR { rows_from_stats<T>(shard, all, to, begin, end); });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(StatsOfRows);
HWY_EXPORT(RowsFromStats);

void cross_entropy_stats(Stream& stream, const CrossEntropyShard& args, const Tensor& stats) {
  check_targets(args.targets, args.vocab);
  const Shard shard(args);
  parallel_ranges(stream, shard.logits.count(), args.logits.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(StatsOfRows)(shard, stats.data<double>(), begin, end);
  });
}

void cross_entropy_from_stats(Stream& stream, const CrossEntropyShard& args, const Tensor& all_stats,
                              const Tensor& losses, const Tensor& dlogits, float scale) {
  check_targets(args.targets, args.vocab);
  const Shard shard(args);
  const AllStats all{all_stats.data<double>(), all_stats.dim(0), all_stats.dim(1)};
  const Results to{losses.data<float>(), Rows(dlogits), scale};
  const std::int64_t bytes = dlogits.defined() ? args.logits.bytes() : all_stats.bytes();
  parallel_ranges(stream, shard.logits.count(), bytes, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(RowsFromStats)(dlogits.dtype(), shard, all, to, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
