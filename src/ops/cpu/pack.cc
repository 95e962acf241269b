#include "ops/cpu/pack.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/pack.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

using Words = hn::Vec<U32>;

HWY_INLINE Words words(Vec v) {
  return hn::BitCast(U32(), v);
}

// Sources of 32-bit words: a fp32 value, or a pair of bf16 values that are neighbours in depth.
// inside(i, j) tells whether words (i .. i + kLanes, j .. j + kLanes) are all there; then load(i, j)
// gives words (i, j .. j + kLanes). load_edge() does so anywhere, with zeros outside the matrix.

// The rows that follow, at a distance that memory takes to answer. Past the matrix it does nothing.
template <class T>
HWY_INLINE void prefetch_rows(const T* p, std::int64_t stride, std::int64_t rows) {
  const std::uintptr_t address =
      reinterpret_cast<std::uintptr_t>(p) + static_cast<std::uintptr_t>(rows * stride) * sizeof(T);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer past the matrix may not be computed as one.
  hwy::Prefetch(reinterpret_cast<const T*>(address));
}

// Word (i, j) is element (i, j) of a row-major matrix, converted.
template <class T>
struct Elements {
  const T* data;
  std::int64_t stride, rows, cols;

  HWY_INLINE bool inside(std::int64_t i, std::int64_t j) const {
    return i + kLanes <= rows && j + kLanes <= cols;
  }
  HWY_INLINE Words load(std::int64_t i, std::int64_t j) const {
    const T* p = data + i * stride + j;
    prefetch_rows(p, stride, kLanes);
    return words(cpu::HWY_NAMESPACE::load(p));
  }
  HWY_INLINE Words load_edge(std::int64_t i, std::int64_t j) const {
    if (i >= rows || j >= cols) return hn::Zero(U32());
    const T* p = data + i * stride + j;
    if (kLanes == 1 || cols - j >= kLanes) return words(cpu::HWY_NAMESPACE::load(p));
    return words(cpu::HWY_NAMESPACE::load(p, Part{cols - j}));
  }
};

// Word (i, j) is the pair of elements (i, 2j), (i, 2j + 1).
struct PairsInRow {
  const std::uint16_t* data;
  std::int64_t stride, rows, cols;

  HWY_INLINE bool inside(std::int64_t i, std::int64_t j) const {
    return i + kLanes <= rows && 2 * (j + kLanes) <= cols;
  }
  HWY_INLINE Words load(std::int64_t i, std::int64_t j) const {
    const std::uint16_t* p = data + i * stride + 2 * j;
    prefetch_rows(p, stride, kLanes);
    return copy(p, 2 * kLanes);
  }
  HWY_INLINE Words load_edge(std::int64_t i, std::int64_t j) const {
    if (i >= rows || 2 * j >= cols) return hn::Zero(U32());
    return copy(data + i * stride + 2 * j, std::min(cols - 2 * j, 2 * kLanes));
  }

 private:
  static HWY_INLINE Words copy(const std::uint16_t* p, std::int64_t elements) {
    alignas(64) std::uint32_t values[kLanes] = {};
    std::memcpy(values, p, static_cast<std::size_t>(elements) * sizeof(*p));
    return hn::Load(U32(), values);
  }
};

// Word (i, j) is the pair of elements (2i, j), (2i + 1, j).
struct PairsInColumn {
  const std::uint16_t* data;
  std::int64_t stride, rows, cols;

  HWY_INLINE bool inside(std::int64_t i, std::int64_t j) const {
    return 2 * (i + kLanes) <= rows && j + kLanes <= cols;
  }
  HWY_INLINE Words load(std::int64_t i, std::int64_t j) const {
    const std::uint16_t* p = data + 2 * i * stride + j;
    prefetch_rows(p, stride, 2 * kLanes);
    prefetch_rows(p, stride, 2 * kLanes + 1);
    const auto first = hn::PromoteTo(U32(), hn::LoadU(U16(), p));
    return hn::Or(first, hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), p + stride))));
  }
  HWY_INLINE Words load_edge(std::int64_t i, std::int64_t j) const {
    return hn::Or(element(2 * i, j), hn::ShiftLeft<16>(element(2 * i + 1, j)));
  }

 private:
  HWY_INLINE Words element(std::int64_t row, std::int64_t col) const {
    if (row >= rows || col >= cols) return hn::Zero(U32());
    const std::uint16_t* p = data + row * stride + col;
    if (kLanes == 1 || cols - col >= kLanes) return hn::PromoteTo(U32(), hn::LoadU(U16(), p));
    return hn::PromoteTo(U32(), detail::load_part(U16(), p, cols - col));
  }
};

#if HWY_TARGET != HWY_SCALAR
// Transposes the 4 x 4 words of each 128-bit block of four vectors.
HWY_INLINE void transpose_in_blocks(Words& a, Words& b, Words& c, Words& d) {
  using Wide = hn::RepartitionToWide<U32>;
  const U32 u32;
  const auto wide = [](Words v) HWY_ATTR { return hn::BitCast(Wide(), v); };
  const auto ac_low = wide(hn::InterleaveLower(u32, a, b));
  const auto ac_high = wide(hn::InterleaveUpper(u32, a, b));
  const auto bd_low = wide(hn::InterleaveLower(u32, c, d));
  const auto bd_high = wide(hn::InterleaveUpper(u32, c, d));
  a = hn::BitCast(u32, hn::InterleaveLower(Wide(), ac_low, bd_low));
  b = hn::BitCast(u32, hn::InterleaveUpper(Wide(), ac_low, bd_low));
  c = hn::BitCast(u32, hn::InterleaveLower(Wide(), ac_high, bd_high));
  d = hn::BitCast(u32, hn::InterleaveUpper(Wide(), ac_high, bd_high));
}
#endif

#if HWY_TARGET <= HWY_AVX2
// Rows (even block of a, of b, …), (odd block of a, of b, …).
HWY_INLINE void exchange_blocks(Words& a, Words& b) {
  const Words even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a);
  b = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a));
  a = even;
}
#endif

#if HWY_TARGET <= HWY_AVX3
HWY_INLINE void exchange_halves(Words& a, Words& b) {
  const Words low = hn::ConcatLowerLower(U32(), b, a);
  b = hn::ConcatUpperUpper(U32(), b, a);
  a = low;
}
#endif

// v[j] becomes what lane j of v[0], v[1], … was.
HWY_INLINE void transpose([[maybe_unused]] Words (&v)[kLanes]) {
#if HWY_TARGET != HWY_SCALAR
  for (std::int64_t i = 0; i < kLanes; i += 4) transpose_in_blocks(v[i], v[i + 1], v[i + 2], v[i + 3]);
#endif
#if HWY_TARGET <= HWY_AVX3
  for (std::int64_t j = 0; j < 4; ++j) {
    exchange_blocks(v[j], v[j + 4]);
    exchange_blocks(v[j + 8], v[j + 12]);
    exchange_halves(v[j], v[j + 8]);
    exchange_halves(v[j + 4], v[j + 12]);
  }
#elif HWY_TARGET <= HWY_AVX2
  for (std::int64_t j = 0; j < 4; ++j) exchange_blocks(v[j], v[j + 4]);
#endif
}

// out[j * out_stride + i] = word (i, j) of the source, for i < count_i (a multiple of 16), j < count_j.
// Goes along the source's rows: the processor's prefetchers follow a few of them, not a column.
template <class Source>
void transpose_words(const Source& source, std::int64_t count_i, std::int64_t count_j, std::uint32_t* out,
                     std::int64_t out_stride) {
  for (std::int64_t i = 0; i < count_i; i += kLanes) {
    for (std::int64_t j = 0; j < count_j; j += kLanes) {
      Words v[kLanes];
      std::uint32_t* to = out + j * out_stride + i;
      if (source.inside(i, j)) {
        for (std::int64_t l = 0; l < kLanes; ++l) v[l] = source.load(i + l, j);
      } else {
        for (std::int64_t l = 0; l < kLanes; ++l) v[l] = source.load_edge(i + l, j);
      }
      transpose(v);
      const std::int64_t lanes = std::min(kLanes, count_j - j);
      for (std::int64_t l = 0; l < lanes; ++l) hn::StoreU(v[l], U32(), to + l * out_stride);
    }
  }
}

// out[i * out_stride + j] = word (i, j) of the source, for i < count_i, j < count_j (a multiple of 16).
template <class Source>
void copy_words(const Source& source, std::int64_t count_i, std::int64_t count_j, std::uint32_t* out,
                std::int64_t out_stride) {
  for (std::int64_t i = 0; i < count_i; ++i) {
    for (std::int64_t j = 0; j < count_j; j += kLanes) {
      const Words v = source.inside(i, j) ? source.load(i, j) : source.load_edge(i, j);
      hn::StoreU(v, U32(), out + i * out_stride + j);
    }
  }
}

template <class T>
void pack_left_f32(const MatrixView& a, std::int64_t rows, std::int64_t depth, std::uint32_t* out) {
  const auto* data = static_cast<const T*>(a.data);
  const std::int64_t padded = round_up(depth, kDepthUnit);
  if (a.transposed) {
    transpose_words(Elements<T>{data, a.stride, depth, rows}, padded, rows, out, padded);
  } else {
    copy_words(Elements<T>{data, a.stride, rows, depth}, rows, padded, out, padded);
  }
}

void pack_left_bf16(const MatrixView& a, std::int64_t rows, std::int64_t depth, std::uint32_t* out) {
  const auto* data = static_cast<const std::uint16_t*>(a.data);
  const std::int64_t padded = round_up(depth, kDepthUnit) / 2;
  if (a.transposed) {
    transpose_words(PairsInColumn{data, a.stride, depth, rows}, padded, rows, out, padded);
  } else {
    copy_words(PairsInRow{data, a.stride, rows, depth}, rows, padded, out, padded);
  }
}

// `cols` columns side by side, out_stride words from one step of depth to the next.
template <class T>
void pack_right_f32(const MatrixView& b, std::int64_t depth, std::int64_t width, std::int64_t padded_width,
                    std::uint32_t* out, std::int64_t out_stride) {
  const auto* data = static_cast<const T*>(b.data);
  const std::int64_t padded = round_up(depth, kDepthUnit);
  if (b.transposed) {
    transpose_words(Elements<T>{data, b.stride, width, depth}, padded_width, padded, out, out_stride);
  } else {
    copy_words(Elements<T>{data, b.stride, depth, width}, padded, padded_width, out, out_stride);
  }
}

void pack_right_bf16(const MatrixView& b, std::int64_t depth, std::int64_t width, std::int64_t padded_width,
                     std::uint32_t* out, std::int64_t out_stride) {
  const auto* data = static_cast<const std::uint16_t*>(b.data);
  const std::int64_t padded = round_up(depth, kDepthUnit) / 2;
  if (b.transposed) {
    transpose_words(PairsInRow{data, b.stride, width, depth}, padded_width, padded, out, out_stride);
  } else {
    copy_words(PairsInColumn{data, b.stride, depth, width}, padded, padded_width, out, out_stride);
  }
}

void pack_left_on_target(const MatrixView& a, std::int64_t rows, std::int64_t depth, Operand operand,
                         void* out) {
  auto* to = static_cast<std::uint32_t*>(out);
  if (operand == Operand::kBF16) return pack_left_bf16(a, rows, depth, to);
  switch (a.dtype) {
    case DType::kBF16:
      return pack_left_f32<BF16>(a, rows, depth, to);
    case DType::kF16:
      return pack_left_f32<F16>(a, rows, depth, to);
    default:
      return pack_left_f32<float>(a, rows, depth, to);
  }
}

void pack_right_on_target(const MatrixView& b, std::int64_t depth, std::int64_t width, Operand operand,
                          RightLayout layout, void* out) {
  auto* to = static_cast<std::uint32_t*>(out);
  const std::int64_t padded_width = round_up(width, kWidthUnit);
  const std::int64_t panel = layout == RightLayout::kPanels ? kWidthUnit : padded_width;
  const std::int64_t panel_words = panel * round_up(depth, kDepthUnit) * size_of(operand) / 4;
  for (std::int64_t col = 0; col < width; col += panel, to += panel_words) {
    const MatrixView part = b.at(0, col);
    const std::int64_t cols = std::min(panel, width - col);
    if (operand == Operand::kBF16) {
      pack_right_bf16(part, depth, cols, panel, to, panel);
      continue;
    }
    switch (b.dtype) {
      case DType::kBF16:
        pack_right_f32<BF16>(part, depth, cols, panel, to, panel);
        break;
      case DType::kF16:
        pack_right_f32<F16>(part, depth, cols, panel, to, panel);
        break;
      default:
        pack_right_f32<float>(part, depth, cols, panel, to, panel);
    }
  }
}

// T: the destination's type; B: the bias's.
template <class T, class B>
void store_row(const float* source, std::int64_t width, T* to, const B* bias, float factor, bool accumulate) {
  const Vec scale = set(factor);
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    Vec v = hn::Mul(load(source + i, part), scale);
    if (bias != nullptr) v = hn::Add(v, load(bias + i, part));
    if (accumulate) v = hn::Add(load(to + i, part), v);
    store(v, to + i, part);
  });
}

template <class T, class B>
void store_rows_of(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t width,
                   const Destination& d) {
  for (std::int64_t r = 0; r < rows; ++r) {
    store_row(source + r * source_stride, width, static_cast<T*>(d.data) + r * d.stride,
              static_cast<const B*>(d.bias), d.factor, d.accumulate);
  }
}

template <class T>
void store_rows_as(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t width,
                   const Destination& d) {
  switch (d.bias_dtype) {
    case DType::kBF16:
      return store_rows_of<T, BF16>(source, source_stride, rows, width, d);
    case DType::kF16:
      return store_rows_of<T, F16>(source, source_stride, rows, width, d);
    default:
      return store_rows_of<T, float>(source, source_stride, rows, width, d);
  }
}

void store_rows_on_target(const float* source, std::int64_t source_stride, std::int64_t rows,
                          std::int64_t width, const Destination& d) {
  switch (d.dtype) {
    case DType::kBF16:
      return store_rows_as<BF16>(source, source_stride, rows, width, d);
    case DType::kF16:
      return store_rows_as<F16>(source, source_stride, rows, width, d);
    default:
      return store_rows_as<float>(source, source_stride, rows, width, d);
  }
}

}  // namespace
}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(pack_left_on_target);
HWY_EXPORT(pack_right_on_target);
HWY_EXPORT(store_rows_on_target);

MatrixView MatrixView::at(std::int64_t row, std::int64_t col) const {
  MatrixView view = *this;
  const std::int64_t offset = transposed ? col * stride + row : row * stride + col;
  view.data = static_cast<const std::byte*>(data) + offset * meshtrain::size_of(dtype);
  return view;
}

void pack_left(const MatrixView& a, std::int64_t rows, std::int64_t depth, Operand operand, void* out) {
  check(operand == Operand::kF32 || a.dtype == DType::kBF16, "a bf16 operand from another dtype");
  HWY_DYNAMIC_DISPATCH(pack_left_on_target)(a, rows, depth, operand, out);
}

void pack_right(const MatrixView& b, std::int64_t depth, std::int64_t width, Operand operand,
                RightLayout layout, void* out) {
  check(operand == Operand::kF32 || b.dtype == DType::kBF16, "a bf16 operand from another dtype");
  HWY_DYNAMIC_DISPATCH(pack_right_on_target)(b, depth, width, operand, layout, out);
}

void store_rows(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t width,
                const Destination& destination) {
  HWY_DYNAMIC_DISPATCH(store_rows_on_target)(source, source_stride, rows, width, destination);
}

}  // namespace meshtrain::ops::cpu
#endif  // HWY_ONCE
