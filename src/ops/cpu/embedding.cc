#include "ops/embedding.h"

#include <algorithm>
#include <span>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

#ifndef MESHTRAIN_OPS_CPU_EMBEDDING_CC_
#define MESHTRAIN_OPS_CPU_EMBEDDING_CC_
namespace meshtrain::ops::cpu {
namespace {

struct Lookup {
  std::span<const std::int32_t> tokens;
  Rows table;
  Rows positions;
  std::int64_t seq;
  std::int64_t first_position;
};

// The part of a table's gradient that one call owns: columns [begin, end) of the rows whose number is
// `residue` modulo `modulus`.
struct TablePart {
  std::int64_t begin;
  std::int64_t end;
  std::int32_t modulus;
  std::int32_t residue;
};

}  // namespace
}  // namespace meshtrain::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE void accumulate(const T* from, float* to, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(to + i, part), load(from + i, part)), to + i, part);
  });
}

template <class T>
void look_up(const Lookup& lookup, const Rows& out, std::int64_t begin, std::int64_t end) {
  for (std::int64_t m = begin; m < end; ++m) {
    const T* token = lookup.table.row<T>(lookup.tokens[static_cast<std::size_t>(m)]);
    T* to = out.row<T>(m);
    if (!lookup.positions.defined()) {
      std::copy_n(token, out.width(), to);
      continue;
    }
    const T* position = lookup.positions.row<T>(lookup.first_position + m % lookup.seq);
    for_each_vector(out.width(), [&](std::int64_t i, auto part) HWY_ATTR {
      store(hn::Add(load(token + i, part), load(position + i, part)), to + i, part);
    });
  }
}

}  // namespace

void LookUp(DType dtype, const Lookup& lookup, const Rows& out, std::int64_t begin, std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR { look_up<T>(lookup, out, begin, end); });
}

void AddToTable(DType dtype, std::span<const std::int32_t> tokens, const Rows& dout, const Rows& dtable,
                const TablePart& part) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      if (tokens[m] % part.modulus != part.residue) continue;
      accumulate(dout.row<T>(static_cast<std::int64_t>(m)) + part.begin,
                 dtable.row<float>(tokens[m]) + part.begin, part.end - part.begin);
    }
  });
}

void AddToPositions(DType dtype, const Rows& dout, std::int64_t seq, const Rows& dpositions, std::int64_t begin,
                    std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t p = begin; p < end; ++p) {
      for (std::int64_t m = p; m < dout.count(); m += seq) {
        accumulate(dout.row<T>(m), dpositions.row<float>(p), dout.width());
      }
    }
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {
namespace {

std::span<const std::int32_t> checked_tokens(const Tensor& tokens, std::int64_t vocab) {
  const std::span<const std::int32_t> ids(tokens.data<std::int32_t>(),
                                          static_cast<std::size_t>(tokens.numel()));
  check(std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= 0 && id < vocab; }),
        "embedding: a token is not below the size of the table");
  return ids;
}

}  // namespace

HWY_EXPORT(LookUp);
HWY_EXPORT(AddToTable);
HWY_EXPORT(AddToPositions);

void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out) {
  const Lookup lookup{checked_tokens(tokens, table.dim(0)), Rows(table), Rows(positions), seq, first_position};
  const Rows to(out);
  parallel_ranges(stream, to.count(), 2 * out.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(LookUp)(out.dtype(), lookup, to, begin, end);
  });
}

void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable) {
  const std::span<const std::int32_t> ids = checked_tokens(tokens, dtable.dim(0));
  const Rows from(dout);
  const Rows to(dtable);
  // Each thread owns a part of dtable and walks all tokens in order: strips of columns first, since
  // they share the work evenly, then classes of rows when there are more threads than strips.
  constexpr std::int64_t kCacheLine = 16;
  constexpr std::int64_t kMinColumns = 64;
  const std::int64_t lines = (to.width() + kCacheLine - 1) / kCacheLine;
  const std::int64_t strips = std::clamp<std::int64_t>(to.width() / kMinColumns, 1, stream.threads());
  const std::int64_t classes = (stream.threads() + strips - 1) / strips;
  const std::int64_t bytes = dout.numel() * (size_of(dout.dtype()) + 2 * size_of(DType::kF32));
  parallel_ranges(stream, strips * classes, bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t strip = item % strips;
      const TablePart part{strip * lines / strips * kCacheLine,
                           std::min((strip + 1) * lines / strips * kCacheLine, to.width()),
                           static_cast<std::int32_t>(classes), static_cast<std::int32_t>(item / strips)};
      HWY_DYNAMIC_DISPATCH(AddToTable)(dout.dtype(), ids, from, to, part);
    }
  });
}

void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions) {
  const Rows from(dout);
  const Rows to(dpositions);
  parallel_ranges(stream, std::min(seq, from.count()), dout.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddToPositions)(dout.dtype(), from, seq, to, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
