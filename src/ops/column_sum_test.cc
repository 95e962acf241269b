#include <gtest/gtest.h>

#include "ops/matmul.h"
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

class ColumnSumTest : public ::testing::TestWithParam<std::tuple<DType, std::int64_t, std::int64_t>> {};

TEST_P(ColumnSumTest, EqualsReference) {
  const auto [dtype, rows, width] = GetParam();
  const StridedMatrix x(dtype, rows, width, "x");
  const auto expected = reference::column_sum(x.values(), static_cast<std::size_t>(width));
  on_each_target([&, width = width](Stream& stream) {
    const auto out = HostTensor::random(DType::kF32, {width}, "out");
    column_sum(stream, x, out, false);
    expect_rounded(out, expected, 8, 1e-5);
    auto twice = out.values();
    for (double& v : twice) v *= 2.0;
    column_sum(stream, x, out, true);
    EXPECT_EQ(out.values(), twice);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ColumnSumTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::Values(1, 7, 64, 129, 300),
                                            ::testing::Values(1, 7, 32, 80, 768, 1001)));

TEST(ColumnSum, SameBitsOnAnyThreads) {
  for (const DType dtype : kFloatTypes) {
    const auto x = HostTensor::random(dtype, {1000, 257}, "x");
    expect_same_on_any_threads([&](Stream& stream) {
      HostTensor out(DType::kF32, {257});
      column_sum(stream, x, out, true);
      return out;
    });
  }
}

TEST(ColumnSum, RoundsA16BitSumOnce) {
  for (const DType dtype : testing::kHalfTypes) {
    for (const std::int64_t width : {1, 80, 257, 1001}) {
      const auto x = HostTensor::random(dtype, {700, width}, "x");
      for (const bool accumulate : {false, true}) {
        testing::expect_rounded_once(
            dtype, {width}, [&](Stream& stream, const Tensor& out) { column_sum(stream, x, out, accumulate); });
      }
    }
  }
}

TEST(ColumnSum, RefusesASumOfAnotherType) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor x(DType::kBF16, {4, 8});
  EXPECT_THROW(column_sum(stream, x, HostTensor(DType::kF16, {8}), false), std::logic_error);
  EXPECT_THROW(column_sum(stream, HostTensor(DType::kF32, {4, 8}), HostTensor(DType::kBF16, {8}), false),
               std::logic_error);
}

TEST(ColumnSum, NoRowsSumToZero) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const auto out = HostTensor::random(DType::kF32, {8}, "out");
  const auto before = out.values();
  column_sum(stream, HostTensor(DType::kBF16, {0, 8}), out, true);
  EXPECT_EQ(out.values(), before);
  column_sum(stream, HostTensor(DType::kBF16, {0, 8}), out, false);
  EXPECT_EQ(out.values(), std::vector<double>(8, 0.0));
}

}  // namespace
}  // namespace meshtrain::ops
