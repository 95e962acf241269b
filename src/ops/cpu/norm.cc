#include "ops/norm.h"

#include <array>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_blocks.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

#ifndef MESHTRAIN_OPS_CPU_NORM_CC_
#define MESHTRAIN_OPS_CPU_NORM_CC_
namespace meshtrain::ops::cpu {
namespace {

struct ForwardRows {
  explicit ForwardRows(const NormForward& args)
      : x(args.x), delta(args.delta), sum(args.sum), y(args.y), stats(args.stats) {}
  Rows x, delta, sum, y, stats;
};

struct BackwardRows {
  explicit BackwardRows(const NormBackwardInput& args)
      : x(args.x), stats(args.stats), dy(args.dy), residual(args.residual_gradient), dx(args.dx) {}
  Rows x, stats, dy, residual, dx;
};

struct WeightRows {
  explicit WeightRows(const NormBackwardWeight& args) : x(args.x), stats(args.stats), dy(args.dy) {}
  Rows x, stats, dy;
};

}  // namespace
}  // namespace meshtrain::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

// What the forward pass normalises: x, or x + delta, which it stores on its first walk over a row.
template <class T>
struct PlainInput {
  const T* x;
  template <class P>
  HWY_INLINE Vec first(std::int64_t i, P part) const {
    return load(x + i, part);
  }
  template <class P>
  HWY_INLINE Vec again(std::int64_t i, P part) const {
    return load(x + i, part);
  }
};

template <class T>
struct AddedInput {
  const T* x;
  const T* delta;
  T* sum;
  template <class P>
  HWY_INLINE Vec first(std::int64_t i, P part) const {
    const Vec total = rounded_to(T(), hn::Add(load(x + i, part), load(delta + i, part)));
    store(total, sum + i, part);
    return total;
  }
  template <class P>
  HWY_INLINE Vec again(std::int64_t i, P part) const {
    return load(sum + i, part);
  }
};

template <class T, class Input>
void rms_norm_row(const Input& input, float epsilon, std::int64_t width, const T* gamma, T* y, float* stats) {
  const auto squares = [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec v = input.first(i, part);
    return std::array{hn::Mul(v, v)};
  };
  const float mean_square = sums<1>(width, squares)[0] / static_cast<float>(width);
  stats[0] = 1.0F / std::sqrt(mean_square + epsilon);
  const Vec scale = set(stats[0]);
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec normal = hn::Mul(input.again(i, part), scale);
    store(hn::Mul(normal, load(gamma + i, part)), y + i, part);
  });
}

template <class T, class Input>
void layer_norm_row(const Input& input, float epsilon, std::int64_t width, const T* gamma, const T* beta, T* y,
                    float* stats) {
  const auto values = [&](std::int64_t i, auto part) HWY_ATTR { return std::array{input.first(i, part)}; };
  stats[0] = sums<1>(width, values)[0] / static_cast<float>(width);
  const Vec mean = set(stats[0]);
  const auto squares = [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec centred = hn::Sub(input.again(i, part), mean);
    return std::array{hn::Mul(centred, centred)};
  };
  const float variance = sums<1>(width, squares)[0] / static_cast<float>(width);
  stats[1] = 1.0F / std::sqrt(variance + epsilon);
  const Vec scale = set(stats[1]);
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec normal = hn::Mul(hn::Sub(input.again(i, part), mean), scale);
    store(hn::MulAdd(normal, load(gamma + i, part), load(beta + i, part)), y + i, part);
  });
}

template <class T, class Input>
void norm_row(const NormForward& args, const ForwardRows& rows, const Input& input, std::int64_t r) {
  const T* gamma = static_cast<const T*>(args.gamma.raw());
  float* stats = rows.stats.row<float>(r);
  T* y = rows.y.row<T>(r);
  if (args.kind == NormKind::kRmsNorm) {
    rms_norm_row(input, args.epsilon, rows.x.width(), gamma, y, stats);
  } else {
    layer_norm_row(input, args.epsilon, rows.x.width(), gamma, static_cast<const T*>(args.beta.raw()), y,
                   stats);
  }
}

// (x - mean) * scale; for RMSNorm mean is not looked at.
template <NormKind kind>
HWY_INLINE Vec normalized(Vec x, Vec mean, Vec scale) {
  return hn::Mul(kind == NormKind::kLayerNorm ? hn::Sub(x, mean) : x, scale);
}

// With g = dy * gamma: dx = scale * (g - [mean(g)] - x^ * mean(g * x^)); the bracket is LayerNorm's.
template <class T, NormKind kind, bool kResidual>
void backward_row(std::int64_t width, const T* x, const float* stats, const T* gamma, const T* dy,
                  const T* residual, T* dx) {
  const Vec mean = set(stats[0]);
  const Vec scale = set(stats[stats_width(kind) - 1]);
  const auto terms = [&](std::int64_t i, auto part) HWY_ATTR {
    const Vec g = hn::Mul(load(dy + i, part), load(gamma + i, part));
    return std::array{hn::Mul(g, normalized<kind>(load(x + i, part), mean, scale)), g};
  };
  const auto total = sums<2>(width, terms);
  const Vec mean_gx = set(total[0] / static_cast<float>(width));
  const Vec mean_g = set(total[1] / static_cast<float>(width));
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    Vec g = hn::Mul(load(dy + i, part), load(gamma + i, part));
    if constexpr (kind == NormKind::kLayerNorm) g = hn::Sub(g, mean_g);
    Vec d = hn::Mul(scale, hn::NegMulAdd(normalized<kind>(load(x + i, part), mean, scale), mean_gx, g));
    if constexpr (kResidual) d = hn::Add(d, load(residual + i, part));
    store(d, dx + i, part);
  });
}

template <class T, NormKind kind>
void backward_rows(const NormBackwardInput& args, const BackwardRows& rows, std::int64_t begin,
                   std::int64_t end) {
  const T* gamma = static_cast<const T*>(args.gamma.raw());
  const std::int64_t width = rows.x.width();
  for (std::int64_t r = begin; r < end; ++r) {
    const T* x = rows.x.row<T>(r);
    const float* stats = rows.stats.row<float>(r);
    const T* dy = rows.dy.row<T>(r);
    T* dx = rows.dx.row<T>(r);
    if (rows.residual.defined()) {
      backward_row<T, kind, true>(width, x, stats, gamma, dy, rows.residual.row<T>(r), dx);
    } else {
      backward_row<T, kind, false>(width, x, stats, gamma, dy, nullptr, dx);
    }
  }
}

// dgamma += dy * x^ and, for LayerNorm, dbeta += dy, over `kRows` rows from row r on, in order.
template <class T, NormKind kind, std::size_t kRows>
HWY_INLINE void add_weight_rows(const WeightRows& rows, std::int64_t r, float* dgamma, float* dbeta) {
  std::array<const T*, kRows> x;
  std::array<const T*, kRows> dy;
  std::array<Vec, kRows> mean;
  std::array<Vec, kRows> scale;
  for (std::size_t k = 0; k < kRows; ++k) {
    const std::int64_t row = r + static_cast<std::int64_t>(k);
    const float* stats = rows.stats.row<float>(row);
    x[k] = rows.x.row<T>(row);
    dy[k] = rows.dy.row<T>(row);
    mean[k] = set(stats[0]);
    scale[k] = set(stats[stats_width(kind) - 1]);
  }
  const auto add = [&](std::int64_t i, auto part) HWY_ATTR {
    Vec gamma = load(dgamma + i, part);
    Vec beta = kind == NormKind::kLayerNorm ? load(dbeta + i, part) : hn::Zero(F32());
    for (std::size_t k = 0; k < kRows; ++k) {
      const Vec g = load(dy[k] + i, part);
      gamma = hn::MulAdd(g, normalized<kind>(load(x[k] + i, part), mean[k], scale[k]), gamma);
      beta = hn::Add(beta, g);
    }
    store(gamma, dgamma + i, part);
    if constexpr (kind == NormKind::kLayerNorm) store(beta, dbeta + i, part);
  };
  for_each_vector(rows.x.width(), add);
}

template <class T, NormKind kind>
void weight_rows(const WeightRows& rows, std::int64_t begin, std::int64_t end, float* dgamma, float* dbeta) {
  std::int64_t r = begin;
  for (; r + 4 <= end; r += 4) add_weight_rows<T, kind, 4>(rows, r, dgamma, dbeta);
  for (; r < end; ++r) add_weight_rows<T, kind, 1>(rows, r, dgamma, dbeta);
}

}  // namespace

void NormForwardRows(const NormForward& args, const ForwardRows& rows, std::int64_t begin, std::int64_t end) {
  with_float_type(args.x.dtype(), [&]<class T>(T) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = rows.x.row<T>(r);
      if (rows.delta.defined()) {
        norm_row<T>(args, rows, AddedInput<T>{x, rows.delta.row<T>(r), rows.sum.row<T>(r)}, r);
      } else {
        norm_row<T>(args, rows, PlainInput<T>{x}, r);
      }
    }
  });
}

void NormBackwardRows(const NormBackwardInput& args, const BackwardRows& rows, std::int64_t begin,
                      std::int64_t end) {
  with_float_type(args.x.dtype(), [&]<class T>(T) HWY_ATTR {
    if (args.kind == NormKind::kRmsNorm) {
      backward_rows<T, NormKind::kRmsNorm>(args, rows, begin, end);
    } else {
      backward_rows<T, NormKind::kLayerNorm>(args, rows, begin, end);
    }
  });
}

void NormWeightRows(const NormBackwardWeight& args, const WeightRows& rows, std::int64_t begin,
                    std::int64_t end, float* dgamma, float* dbeta) {
  with_float_type(args.x.dtype(), [&]<class T>(T) HWY_ATTR {
    if (args.kind == NormKind::kRmsNorm) {
      weight_rows<T, NormKind::kRmsNorm>(rows, begin, end, dgamma, dbeta);
    } else {
      weight_rows<T, NormKind::kLayerNorm>(rows, begin, end, dgamma, dbeta);
    }
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(NormForwardRows);
HWY_EXPORT(NormBackwardRows);
HWY_EXPORT(NormWeightRows);

void norm_forward(Stream& stream, const NormForward& args) {
  const ForwardRows rows(args);
  const std::int64_t bytes = args.x.bytes() * (args.delta.defined() ? 4 : 2);
  parallel_ranges(stream, rows.x.count(), bytes, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormForwardRows)(args, rows, begin, end);
  });
}

void norm_backward_input(Stream& stream, const NormBackwardInput& args) {
  const BackwardRows rows(args);
  const std::int64_t bytes = args.x.bytes() * (args.residual_gradient.defined() ? 4 : 3);
  parallel_ranges(stream, rows.x.count(), bytes, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormBackwardRows)(args, rows, begin, end);
  });
}

void norm_backward_weight(Stream& stream, const NormBackwardWeight& args) {
  const WeightRows rows(args);
  const std::int64_t width = rows.x.width();
  const bool has_beta = args.kind == NormKind::kLayerNorm;
  // A partial sum is dgamma[H], then dbeta[H].
  RowBlockSums partial(rows.x.count(), has_beta ? 2 * width : width);
  partial.compute(stream, 2 * args.x.bytes(), [&](std::int64_t begin, std::int64_t end, float* sums) {
    HWY_DYNAMIC_DISPATCH(NormWeightRows)(args, rows, begin, end, sums, sums + width);
  });
  partial.total(stream, 0, args.dgamma, args.accumulate);
  if (has_beta) partial.total(stream, width, args.dbeta, args.accumulate);
}

}  // namespace meshtrain::ops::cpu
#endif
