#include "ops/norm.h"

#include <gtest/gtest.h>

#include "ops/reference.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_rounded;
using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::StridedMatrix;
using testing::values_of;

constexpr float kEpsilon = 1e-5F;

struct Weights {
  Weights(DType dtype, std::int64_t width)
      : gamma(HostTensor::random(dtype, {width}, "gamma", 0.2, 1.0)),
        beta(HostTensor::random(dtype, {width}, "beta")) {}
  HostTensor gamma;
  HostTensor beta;
};

using NormParam = std::tuple<NormKind, DType, std::int64_t, std::int64_t>;

class NormTest : public ::testing::TestWithParam<NormParam> {
 protected:
  NormKind kind = std::get<0>(GetParam());
  DType dtype = std::get<1>(GetParam());
  std::int64_t rows = std::get<2>(GetParam());
  std::int64_t width = std::get<3>(GetParam());
  Weights weights{dtype, width};

  std::vector<double> beta_values() const {
    return kind == NormKind::kLayerNorm ? weights.beta.values() : std::vector<double>{};
  }
  NormForward forward_args(const Tensor& x, const Tensor& y, const Tensor& stats) const {
    NormForward args{.kind = kind, .epsilon = kEpsilon, .x = x, .gamma = weights.gamma, .y = y, .stats = stats};
    if (kind == NormKind::kLayerNorm) args.beta = weights.beta;
    return args;
  }
  // With the mean far from 0, so that a variance by E[x^2] - E[x]^2 would show.
  StridedMatrix input(std::string_view name) const {
    StridedMatrix x(dtype, rows, width, name);
    testing::fill_random(x, name, 1.0, kind == NormKind::kLayerNorm ? 20.0 : 0.0);
    return x;
  }
};

TEST_P(NormTest, ForwardEqualsReference) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x = input("x");
    const StridedMatrix y(dtype, rows, width, "y");
    const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
    norm_forward(stream, forward_args(x, y, stats));
    const auto expected = reference::norm(kind, kEpsilon, x.values(), weights.gamma.values(), beta_values());
    // Where the mean is 20 and the deviation 1, an fp32 mean costs 20 roundings.
    expect_rounded(y, expected.y, 8, 5e-5);
    if (width > 1) expect_rounded(stats, expected.stats, 40, 1e-6);
    y.expect_margins_untouched();

    norm_forward(stream, forward_args(x, x, stats));
    EXPECT_EQ(x.values(), y.values());
    x.expect_margins_untouched();
  });
}

TEST_P(NormTest, ForwardAddsTheResidualFirst) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype, rows, width, "x");
    const StridedMatrix delta(dtype, rows, width, "delta");
    const StridedMatrix sum(dtype, rows, width, "sum");
    const StridedMatrix y(dtype, rows, width, "y");
    const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
    NormForward args = forward_args(x, y, stats);
    args.delta = delta;
    args.sum = sum;
    norm_forward(stream, args);

    // One fp32 addition of two such values, rounded to the dtype: exactly what a conversion gives.
    auto total = x.values();
    const auto deltas = delta.values();
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += deltas[i];
    const auto rounded = HostTensor::of(dtype, {rows, width}, total);
    EXPECT_EQ(sum.values(), rounded.values());
    const auto expected =
        reference::norm(kind, kEpsilon, rounded.values(), weights.gamma.values(), beta_values());
    expect_rounded(y, expected.y, 16, 1e-5);
    sum.expect_margins_untouched();
    y.expect_margins_untouched();

    const auto y_before = y.values();
    args.sum = delta;
    norm_forward(stream, args);
    EXPECT_EQ(delta.values(), rounded.values());
    EXPECT_EQ(y.values(), y_before);
  });
}

TEST_P(NormTest, BackwardInputEqualsReference) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype, rows, width, "x");
    const StridedMatrix dy(dtype, rows, width, "dy");
    const StridedMatrix residual(dtype, rows, width, "residual");
    const StridedMatrix dx(dtype, rows, width, "dx");
    const HostTensor y(dtype, {rows, width});
    const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
    norm_forward(stream, forward_args(x, y, stats));
    NormBackwardInput args{.kind = kind, .x = x, .gamma = weights.gamma, .stats = stats, .dy = dy, .dx = dx};
    norm_backward_input(stream, args);
    auto expected =
        reference::norm_backward_input(kind, kEpsilon, x.values(), weights.gamma.values(), dy.values());
    // A row of one element has a tiny deviation or none: its scale, up to 316, multiplies every rounding.
    const double absolute = width == 1 ? 2e-3 : 1e-5;
    expect_rounded(dx, expected, 16, absolute);
    dx.expect_margins_untouched();

    const auto residuals = residual.values();
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residuals[i];
    args.residual_gradient = residual;
    norm_backward_input(stream, args);
    expect_rounded(dx, expected, 16, absolute);

    const auto dx_before = dx.values();
    args.dx = residual;
    norm_backward_input(stream, args);
    EXPECT_EQ(residual.values(), dx_before);
    args.residual_gradient = StridedMatrix(dtype, rows, width, "residual");
  });
}

TEST_P(NormTest, BackwardInputOverwritesDyInPlace) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype, rows, width, "x");
    const StridedMatrix dy(dtype, rows, width, "dy");
    const StridedMatrix dx(dtype, rows, width, "dx");
    const HostTensor y(dtype, {rows, width});
    const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
    norm_forward(stream, forward_args(x, y, stats));
    NormBackwardInput args{.kind = kind, .x = x, .gamma = weights.gamma, .stats = stats, .dy = dy, .dx = dx};
    norm_backward_input(stream, args);
    args.dx = dy;
    norm_backward_input(stream, args);
    EXPECT_EQ(dy.values(), dx.values());
    dy.expect_margins_untouched();
  });
}

TEST_P(NormTest, BackwardWeightEqualsReference) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype, rows, width, "x");
    const StridedMatrix dy(dtype, rows, width, "dy");
    const HostTensor y(dtype, {rows, width});
    const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
    norm_forward(stream, forward_args(x, y, stats));
    const auto start = HostTensor::random(DType::kF32, {width}, "start");
    const auto dgamma = HostTensor::of(DType::kF32, {width}, start.values());
    const auto dbeta = HostTensor::of(DType::kF32, {width}, start.values());
    NormBackwardWeight args{
        .kind = kind, .x = x, .stats = stats, .dy = dy, .dgamma = dgamma, .accumulate = false};
    if (kind == NormKind::kLayerNorm) args.dbeta = dbeta;
    norm_backward_weight(stream, args);
    auto expected = reference::norm_backward_weight(kind, kEpsilon, x.values(), dy.values(),
                                                    static_cast<std::size_t>(width));
    expect_rounded(dgamma, expected.dgamma, 16, 2e-5);
    if (kind == NormKind::kLayerNorm) expect_rounded(dbeta, expected.dbeta, 16, 2e-5);

    // Accumulating adds the very same sums.
    auto twice = dgamma.values();
    for (double& v : twice) v *= 2.0;
    args.accumulate = true;
    norm_backward_weight(stream, args);
    EXPECT_EQ(dgamma.values(), twice);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest,
                         ::testing::Combine(::testing::Values(NormKind::kRmsNorm, NormKind::kLayerNorm),
                                            ::testing::ValuesIn(kFloatTypes), ::testing::Values(1, 7, 129),
                                            ::testing::Values(1, 7, 32, 64, 80, 768, 1000)));

// A norm over the heads of a fused projection: rows strided on two levels.
TEST(Norm, TakesRowsOfSeveralDimensions) {
  const std::int64_t batch = 2, seq = 5, heads = 3, dim = 20;
  const auto fused = HostTensor::random(DType::kF32, {batch, seq + 1, 3 * heads * dim}, "fused");
  const Tensor q = fused.tensor().slice(1, 1, seq).slice(2, heads * dim, heads * dim).split(2, heads, dim);
  const Weights weights(DType::kF32, dim);
  on_each_target([&](Stream& stream) {
    const HostTensor y(DType::kF32, {batch, seq, heads, dim});
    const HostTensor stats(DType::kF32, {batch * seq * heads, 1});
    norm_forward(stream, {.kind = NormKind::kRmsNorm,
                          .epsilon = kEpsilon,
                          .x = q,
                          .gamma = weights.gamma,
                          .y = y,
                          .stats = stats});
    const auto expected =
        reference::norm(NormKind::kRmsNorm, kEpsilon, values_of(q), weights.gamma.values(), {});
    expect_rounded(y, expected.y, 8, 1e-6);
  });
}

TEST(Norm, ReferenceGradientEqualsDifferences) {
  const std::size_t width = 5;
  const std::vector<double> x = {0.3, -1.1, 2.0, 0.7, -0.4};
  const std::vector<double> gamma = {1.0, 0.5, -0.3, 2.0, 1.5};
  const std::vector<double> dy = {0.2, -0.7, 1.3, 0.4, -1.0};
  const double step = 1e-6;
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
    const auto value = [&](const std::vector<double>& at) {
      const auto y = reference::norm(kind, 1e-5, at, gamma, {}).y;
      double dot = 0.0;
      for (std::size_t i = 0; i < width; ++i) dot += y[i] * dy[i];
      return dot;
    };
    const auto dx = reference::norm_backward_input(kind, 1e-5, x, gamma, dy);
    for (std::size_t i = 0; i < width; ++i) {
      auto above = x;
      auto below = x;
      above[i] += step;
      below[i] -= step;
      EXPECT_NEAR(dx[i], (value(above) - value(below)) / (2 * step), 1e-8);
    }
  }
}

TEST(Norm, SameBitsOnAnyThreads) {
  const std::int64_t rows = 333, width = 768;
  for (const DType dtype : kFloatTypes) {
    for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
      const Weights weights(dtype, width);
      const auto x = HostTensor::random(dtype, {rows, width}, "x");
      const auto dy = HostTensor::random(dtype, {rows, width}, "dy");
      const HostTensor stats(DType::kF32, {rows, stats_width(kind)});
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor y(dtype, {rows, width});
        norm_forward(stream, {.kind = kind,
                              .epsilon = kEpsilon,
                              .x = x,
                              .gamma = weights.gamma,
                              .beta = weights.beta,
                              .y = y,
                              .stats = stats});
        return y;
      });
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor dx(dtype, {rows, width});
        norm_backward_input(stream,
                            {.kind = kind, .x = x, .gamma = weights.gamma, .stats = stats, .dy = dy, .dx = dx});
        return dx;
      });
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor gradients(DType::kF32, {2, width});
        const Tensor both = gradients;
        norm_backward_weight(stream, {.kind = kind,
                                      .x = x,
                                      .stats = stats,
                                      .dy = dy,
                                      .dgamma = both.slice(0, 0, 1).view({width}),
                                      .dbeta = both.slice(0, 1, 1).view({width})});
        return gradients;
      });
    }
  }
}

TEST(Norm, Rounds16BitWeightGradientsOnce) {
  for (const DType dtype : testing::kHalfTypes) {
    for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kLayerNorm}) {
      for (const std::int64_t width : {1, 80, 1001}) {
        const auto x = HostTensor::random(dtype, {333, width}, "x");
        const auto dy = HostTensor::random(dtype, {333, width}, "dy");
        const auto stats = HostTensor::random(DType::kF32, {333, stats_width(kind)}, "stats");
        for (const bool accumulate : {false, true}) {
          testing::expect_rounded_once(dtype, {2, width}, [&](Stream& stream, const Tensor& both) {
            const Tensor dbeta = both.slice(0, 1, 1).view({width});
            norm_backward_weight(stream, {.kind = kind,
                                          .x = x,
                                          .stats = stats,
                                          .dy = dy,
                                          .dgamma = both.slice(0, 0, 1).view({width}),
                                          .dbeta = kind == NormKind::kLayerNorm ? dbeta : Tensor(),
                                          .accumulate = accumulate});
          });
        }
      }
    }
  }
}

TEST(Norm, NoRowsLeaveOnlyZeroGradients) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const Weights weights(DType::kF32, 8);
  const HostTensor none(DType::kF32, {0, 8});
  const HostTensor stats(DType::kF32, {0, 2});
  const NormKind kind = NormKind::kLayerNorm;
  norm_forward(
      stream,
      {.kind = kind, .x = none, .gamma = weights.gamma, .beta = weights.beta, .y = none, .stats = stats});
  norm_backward_input(
      stream, {.kind = kind, .x = none, .gamma = weights.gamma, .stats = stats, .dy = none, .dx = none});
  const auto dgamma = HostTensor::random(DType::kF32, {8}, "dgamma");
  const auto dbeta = HostTensor::random(DType::kF32, {8}, "dbeta");
  const auto before = dgamma.values();
  NormBackwardWeight args{.kind = kind,
                          .x = none,
                          .stats = stats,
                          .dy = none,
                          .dgamma = dgamma,
                          .dbeta = dbeta,
                          .accumulate = true};
  norm_backward_weight(stream, args);
  EXPECT_EQ(dgamma.values(), before);
  args.accumulate = false;
  norm_backward_weight(stream, args);
  EXPECT_EQ(dgamma.values(), std::vector<double>(8, 0.0));
  EXPECT_EQ(dbeta.values(), std::vector<double>(8, 0.0));
}

TEST(Norm, RefusesBrokenContracts) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const Weights weights(DType::kF32, 8);
  const HostTensor x(DType::kF32, {2, 8});
  const HostTensor narrow_x(DType::kBF16, {2, 8});
  const HostTensor stats(DType::kF32, {2, 1});
  NormForward args{.x = x, .delta = x, .gamma = weights.gamma, .y = x, .stats = stats};
  EXPECT_THROW(norm_forward(stream, args), std::logic_error);  // delta without sum
  args.delta = {};
  args.y = narrow_x;
  EXPECT_THROW(norm_forward(stream, args), std::logic_error);
  args.y = x;
  args.kind = NormKind::kLayerNorm;
  EXPECT_THROW(norm_forward(stream, args), std::logic_error);  // stats too narrow
  const HostTensor half(DType::kBF16, {8});
  EXPECT_THROW(norm_backward_weight(stream, {.x = x, .stats = stats, .dy = x, .dgamma = half}),
               std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
