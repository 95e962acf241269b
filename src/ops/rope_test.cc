#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/reference.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_close;
using testing::expect_rounded;
using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::values_of;

HostTensor table(std::int64_t seq, std::int64_t dim) {
  std::vector<double> values;
  for (std::int64_t t = 0; t < seq; ++t) {
    for (const bool sine : {false, true}) {
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        const double angle =
            static_cast<double>(t) * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
        values.push_back(sine ? std::sin(angle) : std::cos(angle));
      }
    }
  }
  return HostTensor::of(DType::kF32, {seq, dim}, values);
}

class RopeTest : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {};

TEST_P(RopeTest, EqualsReferenceInsideAFusedProjection) {
  const auto [dtype, dim] = GetParam();
  const std::int64_t batch = 2, seq = 7, heads = 3;
  const HostTensor cos_sin = table(seq, dim);
  for (const auto direction : {RopeDirection::kForward, RopeDirection::kBackward}) {
    on_each_target([&, dtype = dtype, dim = dim](Stream& stream) {
      const auto fused = HostTensor::random(dtype, {batch, seq, 3 * heads * dim + 1}, "fused");
      const auto before = HostTensor::random(dtype, {batch, seq, 3 * heads * dim + 1}, "fused");
      const auto part = [&](const HostTensor& t) {
        return t.tensor().slice(2, heads * dim + 1, heads * dim).split(2, heads, dim);
      };
      rope(stream, part(fused), cos_sin, direction);
      const auto expected =
          reference::rope(values_of(part(before)), cos_sin.values(), static_cast<std::size_t>(heads),
                          static_cast<std::size_t>(dim), direction);
      expect_rounded(part(fused), expected, 2, 1e-6);
      const auto rest = [&](const HostTensor& t, std::int64_t begin, std::int64_t length) {
        return values_of(t.tensor().slice(2, begin, length));
      };
      EXPECT_EQ(rest(fused, 0, heads * dim + 1), rest(before, 0, heads * dim + 1));
      EXPECT_EQ(rest(fused, 2 * heads * dim + 1, heads * dim), rest(before, 2 * heads * dim + 1, heads * dim));
    });
  }
}

TEST_P(RopeTest, BackwardUndoesForward) {
  const auto [dtype, dim] = GetParam();
  const HostTensor cos_sin = table(5, dim);
  on_each_target([&, dtype = dtype, dim = dim](Stream& stream) {
    const auto x = HostTensor::random(dtype, {1, 5, 2, dim}, "x");
    const auto before = x.values();
    rope(stream, x, cos_sin, RopeDirection::kForward);
    rope(stream, x, cos_sin, RopeDirection::kBackward);
    expect_close(x.values(), before, 0.0, 16 * testing::unit_roundoff(dtype));
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::Values(2, 6, 32, 64, 80, 128)));

TEST(Rope, SameBitsOnAnyThreads) {
  const HostTensor cos_sin = table(37, 80);
  for (const DType dtype : kFloatTypes) {
    expect_same_on_any_threads([&](Stream& stream) {
      auto x = HostTensor::random(dtype, {3, 37, 12, 80}, "x");
      rope(stream, x, cos_sin, RopeDirection::kForward);
      return x;
    });
  }
}

TEST(Rope, TakesNoTokensAndRefusesOddHeads) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  rope(stream, HostTensor(DType::kF32, {0, 5, 2, 8}), table(5, 8), RopeDirection::kForward);
  EXPECT_THROW(rope(stream, HostTensor(DType::kF32, {1, 5, 2, 7}), HostTensor(DType::kF32, {5, 7}),
                    RopeDirection::kForward),
               std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
