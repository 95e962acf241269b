// Sums over rows whose order does not depend on the number of threads: each block of kRowBlock rows
// is summed by one thread, then the blocks' sums are added in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"

namespace meshtrain::ops::cpu {

inline constexpr std::int64_t kRowBlock = 64;

class RowBlockSums {
 public:
  // Room for one sum of `width` floats a block.
  RowBlockSums(std::int64_t rows, std::int64_t width)
      : rows_(rows),
        width_(width),
        blocks_((rows + kRowBlock - 1) / kRowBlock),
        sums_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(blocks_ * width))) {}

  // Calls add_rows(begin, end, sum) once a block; it adds rows [begin, end) to the zeros in `sum`.
  template <class AddRows>
  void compute(const Stream& stream, std::int64_t bytes, const AddRows& add_rows) {
    parallel_ranges(stream, blocks_, bytes, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        float* sum = sums_.get() + b * width_;
        std::fill_n(sum, width_, 0.0F);
        add_rows(b * kRowBlock, std::min((b + 1) * kRowBlock, rows_), sum);
      }
    });
  }

  // out[count] (+)= columns [first, first + count) of the blocks' sums, added up in order and rounded once.
  void total(const Stream& stream, std::int64_t first, const Tensor& out, bool accumulate) const {
    with_float_type(out.dtype(), [&]<class T>(T /*format*/) {
      total_as(stream, first, out.numel(), static_cast<T*>(out.raw()), accumulate);
    });
  }

 private:
  template <class T>
  void total_as(const Stream& stream, std::int64_t first, std::int64_t count, T* out, bool accumulate) const {
    constexpr std::int64_t kColumns = 64;
    const std::int64_t bytes = blocks_ * count * static_cast<std::int64_t>(sizeof(float));
    parallel_ranges(
        stream, (count + kColumns - 1) / kColumns, bytes, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t c = begin * kColumns; c < std::min(end * kColumns, count); c += kColumns) {
            const std::int64_t columns = std::min(kColumns, count - c);
            std::array<float, kColumns> sum{};
            for (std::int64_t b = 0; b < blocks_; ++b) {
              const float* from = sums_.get() + b * width_ + first + c;
              for (std::int64_t i = 0; i < columns; ++i) sum[static_cast<std::size_t>(i)] += from[i];
            }
            for (std::int64_t i = 0; i < columns; ++i) {
              const float value = sum[static_cast<std::size_t>(i)];
              out[c + i] = T(accumulate ? static_cast<float>(out[c + i]) + value : value);
            }
          }
        });
  }

  std::int64_t rows_;
  std::int64_t width_;
  std::int64_t blocks_;
  std::unique_ptr<float[]> sums_;
};

}  // namespace meshtrain::ops::cpu
