#include "ops/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

// fp32 roundings relative to the value; the exponent's own rounding is multiplied by its size in the
// negative tail, where values are small.
constexpr double kSlack = 8.0;
constexpr double kTail = 2e-7;

class ActivationTest : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  std::int64_t width() const { return std::get<1>(GetParam()); }
  static constexpr std::int64_t kRows = 7;
};

TEST_P(ActivationTest, GeluEqualsReference) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype(), kRows, width(), "x", 3.0);
    const StridedMatrix y(dtype(), kRows, width(), "y");
    gelu_forward(stream, x, y);
    expect_rounded(y, reference::gelu(x.values()), kSlack, kTail);
    y.expect_margins_untouched();
  });
}

TEST_P(ActivationTest, GeluBackwardEqualsReferenceInPlace) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix x(dtype(), kRows, width(), "x", 3.0);
    const StridedMatrix dy(dtype(), kRows, width(), "dy");
    const StridedMatrix dx(dtype(), kRows, width(), "dx");
    const auto expected = reference::gelu_backward(x.values(), dy.values());
    gelu_backward(stream, x, dy, dx);
    expect_rounded(dx, expected, kSlack, 4 * kTail);
    dx.expect_margins_untouched();
    gelu_backward(stream, x, dy, dy);
    EXPECT_EQ(dy.values(), dx.values());
  });
}

TEST_P(ActivationTest, SwigluEqualsReference) {
  on_each_target([&](Stream& stream) {
    const StridedMatrix gate_up(dtype(), kRows, 2 * width(), "gate_up", 3.0);
    const StridedMatrix y(dtype(), kRows, width(), "y");
    swiglu_forward(stream, gate_up, y);
    expect_rounded(y, reference::swiglu(gate_up.values(), static_cast<std::size_t>(width())), kSlack, kTail);
    y.expect_margins_untouched();

    const StridedMatrix dy(dtype(), kRows, width(), "dy");
    const StridedMatrix d(dtype(), kRows, 2 * width(), "d");
    swiglu_backward(stream, gate_up, dy, d);
    const auto expected =
        reference::swiglu_backward(gate_up.values(), dy.values(), static_cast<std::size_t>(width()));
    expect_rounded(d, expected, kSlack, 10 * kTail);
    d.expect_margins_untouched();
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ActivationTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::Values(1, 7, 32, 64, 80, 1000)));

// The gradients of the references by central differences, on points that no data file fixed.
TEST(ActivationReference, GradientsEqualDifferences) {
  const double step = 1e-6;
  for (double x = -6.0; x <= 6.0; x += 0.37) {
    const double gelu_slope = (reference::gelu({x + step})[0] - reference::gelu({x - step})[0]) / (2 * step);
    EXPECT_NEAR(reference::gelu_backward({x}, {1.0})[0], gelu_slope, 1e-8);
    const auto swiglu = [](double gate, double up) { return reference::swiglu({gate, up}, 1)[0]; };
    const auto d = reference::swiglu_backward({x, 1.5}, {2.0}, 1);
    EXPECT_NEAR(d[0], 2.0 * (swiglu(x + step, 1.5) - swiglu(x - step, 1.5)) / (2 * step), 1e-8);
    EXPECT_NEAR(d[1], 2.0 * (swiglu(x, 1.5 + step) - swiglu(x, 1.5 - step)) / (2 * step), 1e-8);
  }
}

TEST(Activation, FarValuesStayFiniteAndNanStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> far = {1e30,  -1e30, 3e38, -3e38, 88.0,  -88.0, 89.5,
                                   -89.5, 1e4,   -1e4, 12.0,  -12.0, nan,   0.0};
  const auto n = static_cast<std::int64_t>(far.size());
  on_each_target([&](Stream& stream) {
    const auto x = HostTensor::of(DType::kF32, {1, n}, far);
    const auto ones = HostTensor::of(DType::kF32, {1, n}, std::vector<double>(far.size(), 1.0));
    const HostTensor y(DType::kF32, {1, n});
    const auto gate_up = [&] {
      auto values = far;
      values.insert(values.end(), far.size(), 1.0);
      return HostTensor::of(DType::kF32, {1, 2 * n}, values);
    }();
    const HostTensor d(DType::kF32, {1, 2 * n});
    const auto expect_limits = [&](const std::vector<double>& values, bool slope) {
      for (std::size_t i = 0; i < far.size(); ++i) {
        if (std::isnan(far[i])) {
          EXPECT_TRUE(std::isnan(values[i]));
        } else if (far[i] == 0.0) {
          EXPECT_EQ(values[i], slope ? 0.5 : 0.0);
        } else if (far[i] > 0.0) {
          EXPECT_NEAR(values[i] / (slope ? 1.0 : static_cast<double>(static_cast<float>(far[i]))), 1.0, 1e-4);
        } else {
          EXPECT_NEAR(values[i], 0.0, 1e-4) << far[i];
        }
      }
    };
    gelu_forward(stream, x, y);
    expect_limits(y.values(), false);
    gelu_backward(stream, x, ones, y);
    expect_limits(y.values(), true);
    swiglu_forward(stream, gate_up, y);
    expect_limits(y.values(), false);
    swiglu_backward(stream, gate_up, ones, d);
    auto dgate = d.values();
    dgate.resize(far.size());
    expect_limits(dgate, true);
  });
}

// Over the range where gelu and silu matter, a few units in the last place of fp32 plus what one
// rounding of the exponent does.
TEST(Activation, AccuracyOverTheWholeRange) {
  std::vector<double> xs;
  for (int i = -9000; i <= 9000; ++i) xs.push_back(static_cast<double>(static_cast<float>(i * 1e-3)));
  const auto n = static_cast<std::int64_t>(xs.size());
  on_each_target([&](Stream& stream) {
    const auto x = HostTensor::of(DType::kF32, {1, n}, xs);
    const HostTensor y(DType::kF32, {1, n});
    gelu_forward(stream, x, y);
    const auto actual = y.values();
    const auto expected = reference::gelu(xs);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const double exponent = 1.6 * std::abs(xs[i] + 0.0447 * xs[i] * xs[i] * xs[i]);
      EXPECT_LE(std::abs(actual[i] - expected[i]),
                (4.0 + 4.0 * exponent * (xs[i] < 0)) * 0x1p-24 * std::abs(expected[i]) + 1e-38)
          << xs[i];
    }
  });
}

TEST(Activation, SameBitsOnAnyThreads) {
  for (const DType dtype : kFloatTypes) {
    const auto gate_up = HostTensor::random(dtype, {129, 2000}, "gate_up", 2.0);
    const auto dy = HostTensor::random(dtype, {129, 1000}, "dy");
    expect_same_on_any_threads([&](Stream& stream) {
      HostTensor d(dtype, {129, 2000});
      swiglu_backward(stream, gate_up, dy, d);
      return d;
    });
    expect_same_on_any_threads([&](Stream& stream) {
      HostTensor dx(dtype, {129, 2000});
      gelu_backward(stream, gate_up, gate_up, dx);
      return dx;
    });
  }
}

TEST(Activation, ChargesBytesAndTakesNoRows) {
  const auto sim = make_sim_device();
  Stream stream(*sim, 1);
  const Buffer block = sim->allocate(1 << 20, MemoryCategory::kWorkspace);
  const Tensor x(block.data(), DType::kBF16, {10, 100});
  gelu_forward(stream, x, x);
  EXPECT_EQ(stream.total(), (OpCost{.flops = 0, .bytes = 4000}));

  const auto cpu = make_cpu_device();
  Stream real(*cpu, 2);
  const HostTensor none(DType::kF32, {0, 8});
  const HostTensor none_wide(DType::kF32, {0, 16});
  gelu_forward(real, none, none);
  gelu_backward(real, none, none, none);
  swiglu_forward(real, none_wide, none);
  swiglu_backward(real, none_wide, none, none_wide);
}

TEST(Activation, RefusesWrongShapes) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor a(DType::kF32, {2, 8});
  const HostTensor b(DType::kF32, {2, 7});
  const HostTensor c(DType::kBF16, {2, 8});
  EXPECT_THROW(gelu_forward(stream, a, b), std::logic_error);
  EXPECT_THROW(gelu_forward(stream, a, c), std::logic_error);
  EXPECT_THROW(swiglu_forward(stream, a, b), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
