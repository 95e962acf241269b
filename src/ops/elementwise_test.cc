#include "ops/elementwise.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;

constexpr std::array<std::int64_t, 7> kSizes = {0, 1, 7, 16, 33, 1000, 5001};

TEST(Elementwise, AddRoundsOnce) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : kSizes) {
      const auto a = HostTensor::random(dtype, {n}, "a");
      const auto b = HostTensor::random(dtype, {n}, "b", 100.0);
      auto exact = a.values();
      for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += b.values()[i];
      const auto expected = HostTensor::of(dtype, {n}, exact);
      on_each_target([&](Stream& stream) {
        const HostTensor out(dtype, {n});
        add(stream, a, b, out);
        EXPECT_EQ(out.values(), expected.values());
        const auto in_place = HostTensor::of(dtype, {n}, b.values());
        add(stream, a, in_place, in_place);
        EXPECT_EQ(in_place.values(), expected.values());
      });
    }
  }
}

// Every 16-bit value survives the way through fp32; NaNs stay NaNs.
TEST(Elementwise, CastKeepsEvery16BitValue) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const HostTensor all(dtype, {65536});
    auto* bits = static_cast<std::uint16_t*>(all.tensor().raw());
    for (std::size_t i = 0; i < 65536; ++i) bits[i] = static_cast<std::uint16_t>(i);
    on_each_target([&](Stream& stream) {
      const HostTensor wide(DType::kF32, {65536});
      const HostTensor back(dtype, {65536});
      cast(stream, all, wide);
      cast(stream, wide, back);
      const auto* result = static_cast<const std::uint16_t*>(back.tensor().raw());
      const auto* values = wide.tensor().data<float>();
      for (std::size_t i = 0; i < 65536; ++i) {
        const auto b = static_cast<std::uint16_t>(i);
        const float expected = dtype == DType::kBF16 ? float_from_bf16(b) : float_from_f16(b);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(values[i])) << i;
          ASSERT_EQ(result[i] & 0x8000U, b & 0x8000U) << i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected)) << i;
          ASSERT_EQ(result[i], b) << i;
        }
      }
    });
  }
}

// fp32 values of every exponent around every kind of tie, against the scalar conversions, which are tested
// by themselves.
TEST(Elementwise, CastRoundsToNearestEven) {
  std::vector<double> values;
  const HostTensor x(DType::kF32, {32768});
  auto* bits = static_cast<std::uint32_t*>(x.tensor().raw());
  std::size_t n = 0;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      const std::uint32_t high = (i >> 3U) * 0x1357U % 0x80U;
      // 0, 1, half of bf16's or fp16's spacing, and one less and more than it.
      constexpr std::array<std::uint32_t, 8> kLow = {0x0000, 0x0001, 0x7FFF, 0x8000,
                                                     0x8001, 0x1000, 0x0FFF, 0x3000};
      const std::uint32_t mantissa = (high << 16U) | kLow[i & 7U];
      for (const std::uint32_t sign : {0U, 0x80000000U}) bits[n++] = sign | (exponent << 23U) | mantissa;
    }
  }
  on_each_target([&](Stream& stream) {
    const HostTensor brain(DType::kBF16, x.tensor().shape());
    const HostTensor half(DType::kF16, x.tensor().shape());
    cast(stream, x, brain);
    cast(stream, x, half);
    for (std::size_t i = 0; i < n; ++i) {
      const float value = std::bit_cast<float>(bits[i]);
      ASSERT_EQ(brain.tensor().data<BF16>()[i].bits, bf16_bits(value)) << value;
      const std::uint16_t actual = half.tensor().data<F16>()[i].bits;
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(float_from_f16(actual)));
      } else {
        ASSERT_EQ(actual, f16_bits(value)) << value;
      }
    }
  });
}

TEST(Elementwise, CastBetweenAnyTwoTypesAndSizes) {
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const std::int64_t n : kSizes) {
        const auto x = HostTensor::random(from, {n}, "x");
        on_each_target([&](Stream& stream) {
          const HostTensor y(to, {n});
          cast(stream, x, y);
          EXPECT_EQ(y.values(), HostTensor::of(to, {n}, x.values()).values());
        });
      }
    }
  }
}

TEST(Elementwise, FillAndScale) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
    const HostTensor x(dtype, {5001});
    fill(stream, x, 3.0F);
    EXPECT_EQ(x.values(), std::vector<double>(5001, 3.0));
  }
  for (const std::int64_t n : kSizes) {
    const auto start = HostTensor::random(DType::kF32, {n}, "x");
    auto expected = start.values();
    for (double& v : expected) v = static_cast<double>(static_cast<float>(v) * 0.3F);
    on_each_target([&](Stream& s) {
      const auto x = HostTensor::random(DType::kF32, {n}, "x");
      scale(s, x, 0.3F);
      EXPECT_EQ(x.values(), expected);
    });
  }
}

TEST(Elementwise, TouchLeavesZerosAndEveryPageThere) {
  const auto cpu = make_cpu_device();
  for (const int threads : {1, 3}) {
    Stream stream(*cpu, threads);
    for (const std::int64_t bytes : {std::int64_t{4}, std::int64_t{4096}, std::int64_t{5 << 20} + 12}) {
      const Buffer block = cpu->allocate(bytes, MemoryCategory::kWorkspace);
      const Tensor x(block.data(), DType::kF32, {bytes / 4});
      touch(stream, x);
      std::vector<unsigned char> resident(static_cast<std::size_t>((bytes + 4095) / 4096));
      ASSERT_EQ(mincore(block.data(), static_cast<std::size_t>(bytes), resident.data()), 0);
      EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](unsigned char page) { return page & 1U; }));
      const float* data = x.data<float>();
      EXPECT_TRUE(std::all_of(data, data + x.numel(), [](float value) { return value == 0.0F; }));
    }
  }
}

TEST(Elementwise, FillNormalTakesEachNumberByItsIndex) {
  const RandomStream random(0xFEDCBA9876543210U, "weights");
  expect_same_on_any_threads([&](Stream& stream) {
    HostTensor x(DType::kF32, {20001});
    fill_normal(stream, x, random, 7, 0.5F, 0.02F);
    return x;
  });
  // The second crosses the lower word of the counter.
  for (const std::int64_t first : {std::int64_t{7}, (std::int64_t{3} << 32) - 1000}) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{7}, std::int64_t{16}, std::int64_t{20001}}) {
      on_each_target([&](Stream& stream) {
        const HostTensor x(DType::kF32, {n});
        fill_normal(stream, x, random, first, 0.5F, 0.02F);
        const float* data = x.tensor().data<float>();
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(data[i], 0.5F + 0.02F * random.normal(static_cast<std::uint64_t>(first + i)));
        }
      });
    }
  }
}

TEST(Elementwise, SumIsInOrder) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const auto x = HostTensor::random(DType::kF32, {100000}, "x");
  double expected = 0.0;
  for (const double v : x.values()) expected += v;
  EXPECT_EQ(sum(stream, x), expected);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT_FALSE(
        std::isfinite(sum(stream, HostTensor::of(DType::kF32, {3}, {1.0, static_cast<double>(bad), 2.0}))));
  }
}

TEST(Elementwise, ASimulatedSumIsZeroAndCharged) {
  const auto sim = make_sim_device();
  Stream stream(*sim, 1);
  const Buffer block = sim->allocate(4000, MemoryCategory::kWorkspace);
  const Tensor x(block.data(), DType::kF32, {1000});
  EXPECT_EQ(sum(stream, x), 0.0);
  EXPECT_EQ(stream.total(), (OpCost{.flops = 0, .bytes = 4000}));
}

TEST(Elementwise, RefusesOtherTypesAndSizes) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor a(DType::kF32, {8});
  const HostTensor b(DType::kF32, {9});
  const HostTensor ids(DType::kI32, {8});
  EXPECT_THROW(add(stream, a, b, a), std::logic_error);
  EXPECT_THROW(add(stream, ids, ids, ids), std::logic_error);
  EXPECT_THROW(cast(stream, a, ids), std::logic_error);
  EXPECT_THROW(scale(stream, ids, 2.0F), std::logic_error);
  const HostTensor matrix(DType::kF32, {4, 4});
  EXPECT_THROW(fill(stream, matrix.tensor().slice(1, 0, 2), 0.0F), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
