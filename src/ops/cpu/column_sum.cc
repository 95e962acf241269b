#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/column_sum.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_blocks.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

template <class T, int kRows>
HWY_INLINE void add_rows(const Rows& x, std::int64_t r, float* sum) {
  std::array<const T*, kRows> row;
  for (int k = 0; k < kRows; ++k) row[static_cast<std::size_t>(k)] = x.row<T>(r + k);
  for_each_vector(x.width(), [&](std::int64_t i, auto part) HWY_ATTR {
    Vec total = load(sum + i, part);
    for (const T* p : row) total = hn::Add(total, load(p + i, part));
    store(total, sum + i, part);
  });
}

}  // namespace

void ColumnSumRows(DType dtype, const Rows& x, std::int64_t begin, std::int64_t end, float* sum) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    std::int64_t r = begin;
    for (; r + 4 <= end; r += 4) add_rows<T, 4>(x, r, sum);
    for (; r < end; ++r) add_rows<T, 1>(x, r, sum);
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(ColumnSumRows);

void column_sum(Stream& stream, const Tensor& x, const Tensor& out, bool accumulate) {
  const Rows rows(x);
  RowBlockSums partial(rows.count(), rows.width());
  partial.compute(stream, x.bytes(), [&](std::int64_t begin, std::int64_t end, float* sum) {
    HWY_DYNAMIC_DISPATCH(ColumnSumRows)(x.dtype(), rows, begin, end, sum);
  });
  partial.total(stream, 0, out, accumulate);
}

}  // namespace meshtrain::ops::cpu
#endif
