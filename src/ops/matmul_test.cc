#include "ops/matmul.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "ops/cpu/matmul.h"
#include "ops/processor.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::StridedMatrix;
using testing::unit_roundoff;

struct Reference {
  std::vector<double> c;
  std::vector<double> magnitude;  // the sum of the absolute values of what c adds up
};

// c[M, N] = a·b in double; a [M, K] and b [K, N], or stored transposed.
Reference product(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  const auto av = testing::values_of(a);
  const auto bv = testing::values_of(b);
  const auto rows = static_cast<std::size_t>(a.dim(options.transpose_a ? 1 : 0));
  const auto depth = static_cast<std::size_t>(a.dim(options.transpose_a ? 0 : 1));
  const auto cols = static_cast<std::size_t>(b.dim(options.transpose_b ? 0 : 1));
  Reference r{std::vector<double>(rows * cols), std::vector<double>(rows * cols)};
  for (std::size_t m = 0; m < rows; ++m) {
    for (std::size_t n = 0; n < cols; ++n) {
      for (std::size_t k = 0; k < depth; ++k) {
        const double term = av[options.transpose_a ? k * rows + m : m * depth + k] *
                            bv[options.transpose_b ? n * depth + k : k * cols + n];
        r.c[m * cols + n] += term;
        r.magnitude[m * cols + n] += std::abs(term);
      }
    }
  }
  return r;
}

// A sum of `terms` products in fp32 errs by at most terms * 2^-24 of the sum of their magnitudes, in
// whatever order they are added (Higham 2002, section 3.1); the result is rounded once more.
void expect_sums(const Tensor& actual, const Reference& expected, std::int64_t terms) {
  const auto values = testing::values_of(actual);
  ASSERT_EQ(values.size(), expected.c.size());
  const double rounding = actual.dtype() == DType::kF32 ? 0.0 : unit_roundoff(actual.dtype());
  const double subnormal = actual.dtype() == DType::kF16 ? 0x1p-25 : 0.0;
  int shown = 0;
  for (std::size_t i = 0; i < values.size() && shown < 5; ++i) {
    const double bound = static_cast<double>(terms) * 0x1p-24 * expected.magnitude[i] +
                         rounding * std::abs(expected.c[i]) * 1.01 + subnormal;
    if (!(std::abs(values[i] - expected.c[i]) <= bound)) {
      ADD_FAILURE() << "element " << i << " is " << values[i] << ", expected " << expected.c[i] << " within "
                    << bound;
      ++shown;
    }
  }
}

Shape stored(std::int64_t rows, std::int64_t cols, bool transposed) {
  return transposed ? Shape{cols, rows} : Shape{rows, cols};
}

struct Case {
  DType dtype = DType::kF32;
  DType out = DType::kF32;
  std::int64_t m = 0, n = 0, k = 0;
};

std::vector<Case> cases() {
  constexpr std::array<std::array<std::int64_t, 3>, 12> kShapes = {{{1, 1, 1},
                                                                    {7, 7, 7},
                                                                    {129, 129, 129},
                                                                    {1, 129, 64},
                                                                    {64, 1, 33},
                                                                    {17, 64, 32},
                                                                    {96, 192, 256},
                                                                    {2, 50257, 3},
                                                                    {50257, 2, 5},
                                                                    {3, 5, 50257},
                                                                    {257, 70, 4200},
                                                                    {40, 66, 9000}}};
  std::vector<Case> all;
  for (const auto& [m, n, k] : kShapes) {
    for (const DType dtype : kFloatTypes) {
      all.push_back({dtype, DType::kF32, m, n, k});
      if (dtype != DType::kF32) all.push_back({dtype, dtype, m, n, k});
    }
  }
  return all;
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}x{}x{}", name_of(c.dtype), name_of(c.out), c.m, c.n, c.k);
}

class MatmulTest : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulTest, EqualsReferenceForAnyTranspose) {
  const auto [dtype, out, m, n, k] = GetParam();
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      SCOPED_TRACE(fmt::format("transpose_a {} transpose_b {}", transpose_a, transpose_b));
      const MatmulOptions options{transpose_a, transpose_b};
      const auto a = HostTensor::random(dtype, stored(m, k, transpose_a), "a");
      const auto b = HostTensor::random(dtype, stored(k, n, transpose_b), "b");
      const Reference expected = product(a, b, options);
      on_each_target([&, out = out, m = m, n = n, k = k](Stream& stream) {
        const auto c = HostTensor::random(out, {m, n}, "c");
        matmul(stream, a, b, c, options);
        expect_sums(c, expected, k);
      });
    }
  }
}

TEST_P(MatmulTest, AccumulatesIntoStridedRows) {
  const auto [dtype, out, m, n, k] = GetParam();
  const StridedMatrix a(dtype, m, k, "a");
  const StridedMatrix b(dtype, k, n, "b");
  Reference expected = product(a, b, {});
  on_each_target([&, dtype = dtype, out = out, m = m, n = n, k = k](Stream& stream) {
    const StridedMatrix c(out, m, n, "c");
    Reference sum = expected;
    const auto before = c.values();
    for (std::size_t i = 0; i < before.size(); ++i) {
      sum.c[i] += before[i];
      sum.magnitude[i] += std::abs(before[i]);
    }
    matmul(stream, a, b, c, {.accumulate = true});
    expect_sums(c, sum, k + 1);
    c.expect_margins_untouched();
  });
}

TEST_P(MatmulTest, AddsABiasToEveryRow) {
  const auto [dtype, out, m, n, k] = GetParam();
  const auto a = HostTensor::random(dtype, {m, k}, "a");
  const StridedMatrix b(dtype, n, k, "b");
  for (const DType bias_dtype : {dtype, DType::kF32}) {
    const auto bias = HostTensor::random(bias_dtype, {n}, "bias", 10.0);
    Reference expected = product(a, b, {.transpose_b = true});
    const auto bias_values = bias.values();
    for (std::size_t i = 0; i < expected.c.size(); ++i) {
      expected.c[i] += bias_values[i % bias_values.size()];
      expected.magnitude[i] += std::abs(bias_values[i % bias_values.size()]);
    }
    on_each_target([&, out = out, m = m, n = n, k = k](Stream& stream) {
      const StridedMatrix c(out, m, n, "c");
      matmul(stream, a, b, c, {.transpose_b = true}, bias);
      expect_sums(c, expected, k + 1);
      c.expect_margins_untouched();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatmulTest, ::testing::ValuesIn(cases()), name_of_case);

// What the processors do that cannot multiply bf16.
TEST(Matmul, Bf16ByWayOfFp32EqualsReference) {
  const auto a = HostTensor::random(DType::kBF16, {200, 150}, "a");
  const auto b = HostTensor::random(DType::kBF16, {90, 150}, "b");
  const Reference expected = product(a, b, {.transpose_b = true});
  on_each_target([&](Stream& stream) {
    const HostTensor c(DType::kBF16, {200, 90});
    cpu::MatmulCall call;
    call.rows = 200;
    call.cols = 90;
    call.depth = 150;
    call.a = {a.tensor().raw(), DType::kBF16, 150, false};
    call.b = {b.tensor().raw(), DType::kBF16, 150, true};
    call.c = {.data = c.tensor().raw(), .dtype = DType::kBF16, .stride = 90};
    cpu::matmul(call, cpu::Operand::kF32, stream.pool());
    expect_sums(c, expected, 150);
  });
}

// Runs again in the processes below, where the older instruction sets must not be given bf16.
TEST(Matmul, OnlyProcessorsThatMultiplyBf16AreGivenIt) {
  EXPECT_EQ(cpu::operand_for(DType::kF16, Bf16Products::kFastest), cpu::Operand::kF32);
  EXPECT_EQ(cpu::operand_for(DType::kF32, Bf16Products::kFastest), cpu::Operand::kF32);
  EXPECT_EQ(cpu::operand_for(DType::kBF16, Bf16Products::kFp32), cpu::Operand::kF32);
  EXPECT_EQ(cpu::operand_for(DType::kBF16, Bf16Products::kFastest),
            multiplies_bf16(this_processor()) ? cpu::Operand::kBF16 : cpu::Operand::kF32);
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) {
    EXPECT_FALSE(multiplies_bf16(this_processor()));
  }
}

// Widened, the numbers multiply as those of an fp32 matrix do: with rows of `a` in place or transposed, one
// slab and several, edges everywhere.
TEST(Matmul, Bf16ProductsInFp32AreThoseOfTheWidenedNumbers) {
  struct Product {
    Shape a, b, c;
    MatmulOptions options;
  };
  const std::vector<Product> products = {
      {{300, 512}, {700, 512}, {300, 700}, {.transpose_b = true}},   {{513, 3072}, {3072, 770}, {513, 770}, {}},
      {{70, 4096}, {96, 4096}, {70, 96}, {.transpose_b = true}},     {{2100, 96}, {96, 1600}, {2100, 1600}, {}},
      {{3000, 64}, {5000, 64}, {3000, 5000}, {.transpose_b = true}}, {{5, 37}, {37, 41}, {5, 41}, {}},
      {{1500, 257}, {1500, 200}, {257, 200}, {.transpose_a = true}}};
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  stream.set_bf16_products(Bf16Products::kFp32);
  for (const Product& p : products) {
    const auto a = HostTensor::random(DType::kBF16, p.a, "a");
    const auto b = HostTensor::random(DType::kBF16, p.b, "b");
    const HostTensor c(DType::kF32, p.c);
    const HostTensor expected(DType::kF32, p.c);
    matmul(stream, a, b, c, p.options);
    matmul(stream, HostTensor::of(DType::kF32, p.a, a.values()), HostTensor::of(DType::kF32, p.b, b.values()),
           expected, p.options);
    EXPECT_EQ(c.bytes(), expected.bytes());
  }
}

// The same tests where oneDNN may use no more than an older processor's instructions.
class OlderProcessor : public ::testing::TestWithParam<const char*> {};

TEST_P(OlderProcessor, PassesTheseTests) {
  const std::string command = fmt::format(
      "ONEDNN_MAX_CPU_ISA={} '{}' --gtest_brief=1 "
      "--gtest_filter='*/MatmulTest.*-*50257*:Matmul.*' >&2",
      GetParam(), std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

INSTANTIATE_TEST_SUITE_P(Isa, OlderProcessor, ::testing::Values("SSE41", "AVX2", "AVX512_CORE"));

TEST(Matmul, SameBitsOnAnyThreads) {
  struct Product {
    Shape a, b, c;
    MatmulOptions options;
  };
  const std::vector<Product> products = {{{300, 512}, {700, 512}, {300, 700}, {.transpose_b = true}},
                                         {{300, 2500}, {2500, 130}, {300, 130}, {}},
                                         {{1500, 257}, {1500, 200}, {257, 200}, {.transpose_a = true}}};
  for (const DType dtype : kFloatTypes) {
    for (const Product& p : products) {
      const auto a = HostTensor::random(dtype, p.a, "a");
      const auto b = HostTensor::random(dtype, p.b, "b");
      expect_same_on_any_threads([&](Stream& stream) {
        HostTensor c(dtype, p.c);
        matmul(stream, a, b, c, p.options);
        return c;
      });
    }
  }
}

TEST(Matmul, RoundsA16BitGradientOnce) {
  for (const DType dtype : testing::kHalfTypes) {
    // A single slab, several, and edges everywhere.
    for (const auto& [tokens, out, in] :
         {std::array{96, 64, 128}, std::array{9001, 40, 66}, std::array{130, 257, 70}}) {
      const auto dy = HostTensor::random(dtype, {tokens, out}, "dy");
      const auto x = HostTensor::random(dtype, {tokens, in}, "x");
      for (const bool accumulate : {false, true}) {
        testing::expect_rounded_once(dtype, {out, in}, [&](Stream& stream, const Tensor& dw) {
          matmul(stream, dy, x, dw, {.transpose_a = true, .accumulate = accumulate});
        });
      }
    }
  }
}

TEST(Matmul, NothingSummedIsZeroOrTheBias) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const HostTensor a(DType::kBF16, {3, 0});
  const HostTensor b(DType::kBF16, {0, 5});
  const auto bias = HostTensor::random(DType::kF32, {5}, "bias");
  const auto c = HostTensor::random(DType::kF32, {3, 5}, "c");
  const auto before = c.values();
  matmul(stream, a, b, c, {.accumulate = true});
  EXPECT_EQ(c.values(), before);
  matmul(stream, a, b, c, {}, bias);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(c.values()[i], bias.values()[i % 5]);
  matmul(stream, a, b, c, {});
  EXPECT_EQ(c.values(), std::vector<double>(15, 0.0));
}

TEST(Matmul, EmptyResultIsLeftAlone) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  matmul(stream, HostTensor(DType::kF32, {0, 4}), HostTensor(DType::kF32, {4, 5}),
         HostTensor(DType::kF32, {0, 5}), {});
  matmul(stream, HostTensor(DType::kF32, {3, 4}), HostTensor(DType::kF32, {4, 0}),
         HostTensor(DType::kF32, {3, 0}), {});
}

TEST(Matmul, InfinitiesAndNansArriveWhereTheyBelong) {
  for (const DType dtype : kFloatTypes) {
    const auto a = HostTensor::of(dtype, {2, 3}, {1.0, INFINITY, 2.0, 1.0, 2.0, 3.0});
    const auto b = HostTensor::of(dtype, {3, 2}, {1.0, 2.0, 3.0, NAN, 1.0, 1.0});
    on_each_target([&](Stream& stream) {
      const HostTensor c(dtype, {2, 2});
      matmul(stream, a, b, c, {});
      const auto values = c.values();
      EXPECT_EQ(values[0], INFINITY);
      EXPECT_TRUE(std::isnan(values[1]));
      EXPECT_EQ(values[2], 10.0);
      EXPECT_TRUE(std::isnan(values[3]));
    });
  }
}

TEST(Matmul, ChargesTwoOperationsATermOnEveryDevice) {
  for (const auto& device : {make_cpu_device(), make_sim_device()}) {
    Stream stream(*device, 1);
    Buffer memory = device->allocate(4096, MemoryCategory::kWorkspace);
    const Tensor a(memory.data(), DType::kBF16, {4, 8});
    const Tensor b(memory.data() + 512, DType::kBF16, {16, 8});
    const Tensor c(memory.data() + 1024, DType::kF32, {4, 16});
    matmul(stream, a, b, c, {.transpose_b = true});
    EXPECT_EQ(stream.total(), (OpCost{.flops = 2 * 4 * 16 * 8, .bytes = 64 + 256 + 256}));
    matmul(stream, a, b, c, {.transpose_b = true, .accumulate = true});
    EXPECT_EQ(stream.total(), (OpCost{.flops = 2 * 2 * 4 * 16 * 8, .bytes = 2 * (64 + 256 + 256) + 256}));
  }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const HostTensor a(DType::kBF16, {4, 8});
  const HostTensor b(DType::kBF16, {8, 16});
  const HostTensor c(DType::kBF16, {4, 16});
  EXPECT_THROW(matmul(stream, a, a, c, {}), std::logic_error);
  EXPECT_THROW(matmul(stream, a, b, c, {.transpose_a = true}), std::logic_error);
  EXPECT_THROW(matmul(stream, a, HostTensor(DType::kF32, {8, 16}), c, {}), std::logic_error);
  EXPECT_THROW(matmul(stream, a, b, HostTensor(DType::kF16, {4, 16}), {}), std::logic_error);
  EXPECT_THROW(matmul(stream, a, b, c, {.accumulate = true}, HostTensor(DType::kF32, {16})), std::logic_error);
  EXPECT_THROW(matmul(stream, a, b, c, {}, HostTensor(DType::kF32, {8})), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
