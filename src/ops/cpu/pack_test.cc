#include "ops/cpu/pack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/testing.h"

namespace meshtrain::ops::cpu {
namespace {

using ops::testing::for_each_target;
using ops::testing::HostTensor;
using ops::testing::kFloatTypes;
using ops::testing::read_element;

struct Case {
  DType dtype;
  Operand operand;
};
constexpr std::array<Case, 4> kCases = {{{DType::kF32, Operand::kF32},
                                         {DType::kF16, Operand::kF32},
                                         {DType::kBF16, Operand::kF32},
                                         {DType::kBF16, Operand::kBF16}}};
constexpr std::array<std::int64_t, 8> kSizes = {1, 7, 16, 31, 33, 64, 65, 130};

// A random matrix [rows, cols], perhaps stored transposed, inside rows that are 3 longer.
struct Source {
  Source(DType dtype, std::int64_t rows, std::int64_t cols, bool transposed)
      : memory(HostTensor::random(dtype, transposed ? Shape{cols, rows + 3} : Shape{rows, cols + 3}, "m")),
        view{memory.tensor().raw(), dtype, memory.tensor().stride(0), transposed} {}
  double at(std::int64_t row, std::int64_t col) const {
    return read_element(static_cast<const std::byte*>(view.at(row, col).data), view.dtype);
  }
  HostTensor memory;
  MatrixView view;
};

// Memory that is no valid zero anywhere, to see what is written.
std::vector<std::byte> noise(std::int64_t bytes) {
  return std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0xFF});
}

double packed_at(const std::vector<std::byte>& packed, Operand operand, std::int64_t index) {
  const DType dtype = operand == Operand::kF32 ? DType::kF32 : DType::kBF16;
  return read_element(packed.data() + index * size_of(operand), dtype);
}

TEST(Pack, LeftRowsAreContiguousAndPaddedWithZeros) {
  for_each_target([] {
    for (const auto& [dtype, operand] : kCases) {
      for (const std::int64_t rows : kSizes) {
        for (const std::int64_t depth : kSizes) {
          for (const bool transposed : {false, true}) {
            const Source a(dtype, rows, depth, transposed);
            const std::int64_t padded = round_up(depth, kDepthUnit);
            auto packed = noise(rows * padded * size_of(operand));
            pack_left(a.view, rows, depth, operand, packed.data());
            for (std::int64_t r = 0; r < rows; ++r) {
              for (std::int64_t k = 0; k < padded; ++k) {
                ASSERT_EQ(packed_at(packed, operand, r * padded + k), k < depth ? a.at(r, k) : 0.0)
                    << name_of(dtype) << ' ' << rows << 'x' << depth << " transposed " << transposed << " at "
                    << r << ", " << k;
              }
            }
          }
        }
      }
    }
  });
}

// Where element (k, n) of a packed right operand lies, from the description of RightLayout.
std::int64_t right_index(RightLayout layout, Operand operand, std::int64_t depth, std::int64_t width,
                         std::int64_t k, std::int64_t n) {
  if (layout == RightLayout::kRows) return k * width + n;
  const std::int64_t step = operand == Operand::kBF16 ? 2 : 1;
  return n / kWidthUnit * kWidthUnit * depth + k / step * step * kWidthUnit + n % kWidthUnit * step + k % step;
}

TEST(Pack, RightLiesAsItsLayoutSaysPaddedWithZeros) {
  for_each_target([] {
    for (const auto& [dtype, operand] : kCases) {
      for (const RightLayout layout : {RightLayout::kRows, RightLayout::kPanels}) {
        if (layout == RightLayout::kRows && operand == Operand::kBF16) continue;
        for (const std::int64_t depth : kSizes) {
          for (const std::int64_t width : kSizes) {
            for (const bool transposed : {false, true}) {
              const Source b(dtype, depth, width, transposed);
              const std::int64_t rows = round_up(depth, kDepthUnit);
              const std::int64_t cols = round_up(width, kWidthUnit);
              auto packed = noise(rows * cols * size_of(operand));
              pack_right(b.view, depth, width, operand, layout, packed.data());
              for (std::int64_t k = 0; k < rows; ++k) {
                for (std::int64_t n = 0; n < cols; ++n) {
                  ASSERT_EQ(packed_at(packed, operand, right_index(layout, operand, rows, cols, k, n)),
                            k < depth && n < width ? b.at(k, n) : 0.0)
                      << name_of(dtype) << ' ' << depth << 'x' << width << " transposed " << transposed
                      << " at " << k << ", " << n;
                }
              }
            }
          }
        }
      }
    }
  });
}

TEST(Pack, RefusesToNarrow) {
  const HostTensor a(DType::kF32, {4, 4});
  std::vector<std::byte> packed(4096);
  EXPECT_THROW(pack_left({a.tensor().raw(), DType::kF32, 4, false}, 4, 4, Operand::kBF16, packed.data()),
               std::logic_error);
  EXPECT_THROW(pack_right({a.tensor().raw(), DType::kF32, 4, false}, 4, 4, Operand::kBF16, RightLayout::kPanels,
                          packed.data()),
               std::logic_error);
}

// One rounding of fp32 arithmetic on values whose sums are exact in fp32.
TEST(Pack, StoreAddsRoundsOnceAndStaysInItsColumns) {
  const std::vector<double> bias = {0.5, -1.0, 0.25};
  const std::vector<double> sums = {1.0 + 0x1p-8, 2.0, 3.0, 1.0 + 3 * 0x1p-8, -2.0, 65504.0};
  for (const DType dtype : kFloatTypes) {
    for_each_target([&] {
      const auto source = HostTensor::of(DType::kF32, {2, 3}, sums);
      const auto added = HostTensor::of(dtype, {3}, bias);
      const auto rounded = [dtype](double value) {
        std::array<std::byte, 8> memory{};
        ops::testing::write_element(memory.data(), dtype, value);
        return read_element(memory.data(), dtype);
      };
      const auto out = HostTensor::of(dtype, {2, 5}, std::vector<double>(10, 7.0));
      Destination d{.data = out.tensor().slice(1, 1, 3).raw(), .dtype = dtype, .stride = 5};
      d.bias = added.tensor().raw();
      d.bias_dtype = dtype;
      store_rows(source.tensor().data<float>(), 3, 2, 3, d);
      std::vector<double> expected;
      for (std::size_t r = 0; r < 2; ++r) {
        expected.push_back(7.0);
        for (std::size_t c = 0; c < 3; ++c) expected.push_back(rounded(sums[r * 3 + c] + bias[c]));
        expected.push_back(7.0);
      }
      EXPECT_EQ(out.values(), expected);
      d.bias = nullptr;
      d.accumulate = true;
      store_rows(source.tensor().data<float>(), 3, 2, 3, d);
      for (std::size_t r = 0; r < 2; ++r) {
        for (std::size_t c = 0; c < 3; ++c) {
          double& value = expected[r * 5 + 1 + c];
          value = rounded(value + sums[r * 3 + c]);
        }
      }
      EXPECT_EQ(out.values(), expected);
    });
  }
}

}  // namespace
}  // namespace meshtrain::ops::cpu
