// Tensors in host memory for the tests of operations. Test code only.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/tensor.h"
#include "ops/cross_entropy.h"
#include "ops/norm.h"

namespace meshtrain {

// GoogleTest names parameterized tests with these.
inline void PrintTo(DType dtype, std::ostream* out) {
  *out << name_of(dtype);
}

namespace ops {

inline void PrintTo(NormKind kind, std::ostream* out) {
  *out << (kind == NormKind::kRmsNorm ? "RMSNorm" : "LayerNorm");
}

}  // namespace ops
}  // namespace meshtrain

namespace meshtrain::ops::testing {

inline constexpr std::array<DType, 3> kFloatTypes = {DType::kF32, DType::kBF16, DType::kF16};

// The largest relative error of one rounding.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

// Calls visit(address) for each element of `t` in order.
template <class Visit>
void for_each_element(const Tensor& t, const Visit& visit) {
  std::array<std::int64_t, Shape::kMaxRank> dims = {1, 1, 1, 1};
  std::array<std::int64_t, Shape::kMaxRank> strides{};
  for (int i = 0; i < t.rank(); ++i) {
    const std::int64_t at = Shape::kMaxRank - t.rank() + i;
    dims[static_cast<std::size_t>(at)] = t.dim(i);
    strides[static_cast<std::size_t>(at)] = t.stride(i);
  }
  auto* base = static_cast<std::byte*>(t.raw());
  for (std::int64_t a = 0; a < dims[0]; ++a) {
    for (std::int64_t b = 0; b < dims[1]; ++b) {
      for (std::int64_t c = 0; c < dims[2]; ++c) {
        for (std::int64_t d = 0; d < dims[3]; ++d) {
          visit(base +
                (a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]) * size_of(t.dtype()));
        }
      }
    }
  }
}

inline double read_element(const std::byte* p, DType dtype) {
  const auto as = [p]<class T>(T value) {
    std::memcpy(&value, p, sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return static_cast<double>(as(float{}));
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(as(BF16{})));
    case DType::kF16:
      return static_cast<double>(static_cast<float>(as(F16{})));
    case DType::kF64:
      return as(double{});
    case DType::kI32:
      return as(std::int32_t{});
    case DType::kI64:
      return static_cast<double>(as(std::int64_t{}));
    case DType::kU8:
      return as(std::uint8_t{});
  }
  return 0.0;
}

// Rounds to the dtype (doubles by way of float).
inline void write_element(std::byte* p, DType dtype, double value) {
  const auto put = [p](auto v) { std::memcpy(p, &v, sizeof(v)); };
  switch (dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kBF16:
      return put(BF16(static_cast<float>(value)));
    case DType::kF16:
      return put(F16(static_cast<float>(value)));
    case DType::kF64:
      return put(value);
    case DType::kI32:
      return put(static_cast<std::int32_t>(value));
    case DType::kI64:
      return put(static_cast<std::int64_t>(value));
    case DType::kU8:
      return put(static_cast<std::uint8_t>(value));
  }
}

// The elements of any tensor of the host, in order of their indices.
inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(t.numel()));
  for_each_element(t, [&](const std::byte* p) { values.push_back(read_element(p, t.dtype())); });
  return values;
}

inline void set_values(const Tensor& t, const std::vector<double>& values) {
  ASSERT_EQ(static_cast<std::int64_t>(values.size()), t.numel());
  std::size_t i = 0;
  for_each_element(t, [&](std::byte* p) { write_element(p, t.dtype(), values[i++]); });
}

// mean + deviation * normal, numbered by element, from the stream named `name`.
inline void fill_random(const Tensor& t, std::string_view name, double deviation = 1.0, double mean = 0.0) {
  const RandomStream random(20240229, name);
  std::uint64_t i = 0;
  for_each_element(t, [&](std::byte* p) {
    write_element(p, t.dtype(), mean + deviation * static_cast<double>(random.normal(i++)));
  });
}

// Owns a zero-filled contiguous tensor of exactly its size, so that a sanitizer sees any access beyond.
class HostTensor {
 public:
  HostTensor(DType dtype, const Shape& shape)
      : dtype_(dtype), shape_(shape), bytes_(static_cast<std::size_t>(shape.numel() * size_of(dtype))) {}
  static HostTensor random(DType dtype, const Shape& shape, std::string_view name, double deviation = 1.0,
                           double mean = 0.0) {
    HostTensor t(dtype, shape);
    fill_random(t.tensor(), name, deviation, mean);
    return t;
  }
  static HostTensor of(DType dtype, const Shape& shape, const std::vector<double>& values) {
    HostTensor t(dtype, shape);
    set_values(t.tensor(), values);
    return t;
  }

  // Valid while this object lives.
  Tensor tensor() const { return Tensor(const_cast<std::byte*>(bytes_.data()), dtype_, shape_); }
  operator Tensor() const { return tensor(); }
  std::vector<double> values() const { return values_of(tensor()); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

// Targets of cross-entropy below `vocab`. Every third row is masked.
inline HostTensor some_targets(std::int64_t rows, std::int64_t vocab) {
  const RandomStream random(3, "targets");
  std::vector<double> ids;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto id = random.bits(static_cast<std::uint64_t>(r)) % static_cast<std::uint64_t>(vocab);
    ids.push_back(r % 3 == 1 ? kIgnoredTarget : static_cast<double>(id));
  }
  return HostTensor::of(DType::kI32, {rows}, ids);
}

// |actual - expected| <= relative * |expected| + absolute, element by element; NaN equals NaN.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  int shown = 0;
  for (std::size_t i = 0; i < actual.size() && shown < 5; ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    if (actual[i] == expected[i]) continue;
    if (!(std::abs(actual[i] - expected[i]) <= relative * std::abs(expected[i]) + absolute)) {
      ADD_FAILURE() << "element " << i << " is " << actual[i] << ", expected " << expected[i];
      ++shown;
    }
  }
}

// For results computed in fp32 and rounded once to the dtype: `slack` counts fp32 roundings relative to
// the value, `absolute` is for what cancels.
inline void expect_rounded(const Tensor& actual, const std::vector<double>& expected, double slack,
                           double absolute) {
  const double rounding = actual.dtype() == DType::kF32 ? 0.0 : unit_roundoff(actual.dtype());
  // Below the normal range of fp16 the spacing is constant.
  const double subnormal = actual.dtype() == DType::kF16 ? 0x1p-25 : 0.0;
  expect_close(values_of(actual), expected, rounding + slack * 0x1p-24, absolute + subnormal);
}

// A matrix [rows, width] inside a wider one, so that its rows are strided and start at odd addresses.
class StridedMatrix {
 public:
  static constexpr std::int64_t kBefore = 3;
  static constexpr std::int64_t kAfter = 2;

  StridedMatrix(DType dtype, std::int64_t rows, std::int64_t width, std::string_view name,
                double deviation = 1.0)
      : width_(width),
        wide_(HostTensor::random(dtype, {rows, kBefore + width + kAfter}, name, deviation)),
        before_(wide_.bytes()) {}

  Tensor tensor() const { return wide_.tensor().slice(1, kBefore, width_); }
  operator Tensor() const { return tensor(); }
  std::vector<double> values() const { return values_of(tensor()); }

  // Nothing was written beside the matrix.
  void expect_margins_untouched() const {
    const Tensor now = wide_.tensor();
    Tensor then(const_cast<std::byte*>(before_.data()), now.dtype(), now.shape());
    const std::int64_t after = kBefore + width_;
    EXPECT_EQ(values_of(now.slice(1, 0, kBefore)), values_of(then.slice(1, 0, kBefore)));
    EXPECT_EQ(values_of(now.slice(1, after, kAfter)), values_of(then.slice(1, after, kAfter)));
  }

 private:
  std::int64_t width_;
  HostTensor wide_;
  std::vector<std::byte> before_;
};

// Calls visit() with each instruction set chosen that this processor has and the library holds.
inline void for_each_target(const std::function<void()>& visit) {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t available = hwy::SupportedTargets() | HWY_SCALAR;
  for (const std::int64_t target : {std::int64_t{HWY_SCALAR}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_AVX3}}) {
    if ((available & target) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    visit();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs body(stream) on two threads for each instruction set; the body compares with a reference.
inline void on_each_target(const std::function<void(Stream&)>& body) {
  const auto device = make_cpu_device();
  for_each_target([&] {
    Stream stream(*device, 2);
    body(stream);
  });
}

// For each instruction set, the tensor that body(stream) returns has the same bits on 1, 2, 3 and 7
// threads.
inline void expect_same_on_any_threads(const std::function<HostTensor(Stream&)>& body) {
  const auto device = make_cpu_device();
  for_each_target([&] {
    Stream single(*device, 1);
    const HostTensor expected = body(single);
    for (const int threads : {2, 3, 7}) {
      SCOPED_TRACE(threads);
      Stream stream(*device, threads);
      EXPECT_TRUE(body(stream).bytes() == expected.bytes());
    }
  });
}

// Runs add(stream, gradient) on an fp32 gradient and on one of a 16-bit dtype that start from the same values:
// the second has the bits of the first, rounded once, on each instruction set and any number of threads.
inline void expect_rounded_once(DType dtype, const Shape& shape,
                                const std::function<void(Stream&, const Tensor&)>& add) {
  const auto device = make_cpu_device();
  const auto start = HostTensor::random(dtype, shape, "gradient");
  for_each_target([&] {
    for (const int threads : {1, 2, 3, 7}) {
      SCOPED_TRACE(fmt::format("{} {} threads", name_of(dtype), threads));
      Stream stream(*device, threads);
      const auto wide = HostTensor::of(DType::kF32, shape, start.values());
      const auto narrow = HostTensor::of(dtype, shape, start.values());
      add(stream, wide);
      add(stream, narrow);
      EXPECT_NE(narrow.bytes(), start.bytes());
      EXPECT_TRUE(narrow.bytes() == HostTensor::of(dtype, shape, wide.values()).bytes());
    }
  });
}

inline constexpr std::array<DType, 2> kHalfTypes = {DType::kBF16, DType::kF16};

}  // namespace meshtrain::ops::testing
