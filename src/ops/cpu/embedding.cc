#include "ops/embedding.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

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

// Rows of dout that go to the same row of a table: those of tokens[i] start at the addresses rows[first[i]],
// …, rows[first[i + 1] - 1], in batch order.
struct TokenGroups {
  std::vector<std::int32_t> tokens;
  std::vector<std::size_t> first;
  std::vector<const void*> rows;

  std::span<const void* const> rows_of(std::size_t i) const {
    return std::span(rows).subspan(first[i], first[i + 1] - first[i]);
  }
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

template <class T, class To>
HWY_INLINE void add_row(const T* from, To* to, std::int64_t begin, std::int64_t end) {
  for_each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(to + begin + i, part), load(from + begin + i, part)), to + begin + i, part);
  });
}

// Adds columns [begin, end) of `rows` to those of `to`, in order, in fp32, and rounds once.
template <class T, class To>
HWY_INLINE void add_rows(std::span<const void* const> rows, To* to, std::int64_t begin, std::int64_t end) {
  if (rows.size() == 1) return add_row(static_cast<const T*>(rows[0]), to, begin, end);
  constexpr std::int64_t kUnroll = 8;
  std::int64_t i = begin;
  for (; i + kUnroll * kLanes <= end; i += kUnroll * kLanes) {
    std::array<Vec, kUnroll> sum;
    for (std::int64_t u = 0; u < kUnroll; ++u) sum[u] = load(to + i + u * kLanes);
    for (const void* row : rows) {
      const T* from = static_cast<const T*>(row) + i;
      for (std::int64_t u = 0; u < kUnroll; ++u) sum[u] = hn::Add(sum[u], load(from + u * kLanes));
    }
    for (std::int64_t u = 0; u < kUnroll; ++u) store(sum[u], to + i + u * kLanes);
  }
  for_each_vector(end - i, [&](std::int64_t offset, auto part) HWY_ATTR {
    const std::int64_t j = i + offset;
    Vec sum = load(to + j, part);
    for (const void* row : rows) sum = hn::Add(sum, load(static_cast<const T*>(row) + j, part));
    store(sum, to + j, part);
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

// fp32 sums wait in the table itself.
void AddToTable(DType dtype, std::span<const std::int32_t> tokens, const Rows& dout, const Rows& dtable,
                const TablePart& part) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::size_t m = 0; m < tokens.size(); ++m) {
      if (tokens[m] % part.modulus != part.residue) continue;
      add_row(dout.row<T>(static_cast<std::int64_t>(m)), dtable.row<float>(tokens[m]), part.begin, part.end);
    }
  });
}

void AddGroupsToTable(DType dtype, const TokenGroups& groups, const Rows& dtable, const TablePart& part) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::size_t i = 0; i < groups.tokens.size(); ++i) {
      if (groups.tokens[i] % part.modulus != part.residue) continue;
      add_rows<T>(groups.rows_of(i), dtable.row<T>(groups.tokens[i]), part.begin, part.end);
    }
  });
}

void AddToPositions(const Tensor& dout, std::int64_t seq, const Tensor& dpositions, std::int64_t begin,
                    std::int64_t end) {
  const Rows from(dout);
  const Rows to(dpositions);
  with_float_type(dout.dtype(), [&]<class T>(T) HWY_ATTR {
    std::vector<const void*> rows;
    for (std::int64_t p = begin; p < end; ++p) {
      rows.clear();
      for (std::int64_t m = p; m < from.count(); m += seq) rows.push_back(from.row<T>(m));
      if (dpositions.dtype() == DType::kF32) {
        add_rows<T>(rows, to.row<float>(p), 0, from.width());
      } else {
        add_rows<T>(rows, to.row<T>(p), 0, from.width());
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

// All rows of a token together: a stable radix sort by digits of ten bits (Knuth, volume 3, 5.2.5).
TokenGroups rows_by_token(std::span<const std::int32_t> ids, std::int64_t vocab, const Rows& dout) {
  constexpr std::uint32_t kBits = 10;
  constexpr std::uint32_t kMask = (1U << kBits) - 1;
  std::vector<std::uint32_t> order(ids.size());
  std::iota(order.begin(), order.end(), 0U);
  std::vector<std::uint32_t> next(ids.size());
  for (std::uint32_t shift = 0; (vocab - 1) >> shift > 0; shift += kBits) {
    const auto digit = [&](std::uint32_t m) { return static_cast<std::uint32_t>(ids[m]) >> shift & kMask; };
    std::array<std::uint32_t, kMask + 2> begin{};
    for (const std::uint32_t m : order) ++begin[digit(m) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const std::uint32_t m : order) next[begin[digit(m)]++] = m;
    order.swap(next);
  }
  TokenGroups groups;
  for (const std::uint32_t m : order) {
    if (groups.tokens.empty() || ids[m] != groups.tokens.back()) {
      groups.tokens.push_back(ids[m]);
      groups.first.push_back(groups.rows.size());
    }
    groups.rows.push_back(dout.row<std::byte>(m));
  }
  groups.first.push_back(groups.rows.size());
  return groups;
}

}  // namespace

HWY_EXPORT(LookUp);
HWY_EXPORT(AddToTable);
HWY_EXPORT(AddGroupsToTable);
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
  const bool in_place = dtable.dtype() == DType::kF32;
  const TokenGroups groups = in_place ? TokenGroups() : rows_by_token(ids, dtable.dim(0), from);
  // Each thread owns a part of dtable and walks all tokens: strips of columns first, since they share the
  // work evenly, then classes of rows when there are more threads than strips.
  constexpr std::int64_t kCacheLine = 16;
  constexpr std::int64_t kMinColumns = 64;
  const std::int64_t lines = (to.width() + kCacheLine - 1) / kCacheLine;
  const std::int64_t strips = std::clamp<std::int64_t>(to.width() / kMinColumns, 1, stream.threads());
  const std::int64_t classes = (stream.threads() + strips - 1) / strips;
  const std::int64_t bytes = dout.numel() * (size_of(dout.dtype()) + 2 * size_of(dtable.dtype()));
  parallel_ranges(stream, strips * classes, bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t strip = item % strips;
      const TablePart part{strip * lines / strips * kCacheLine,
                           std::min((strip + 1) * lines / strips * kCacheLine, to.width()),
                           static_cast<std::int32_t>(classes), static_cast<std::int32_t>(item / strips)};
      if (in_place) {
        HWY_DYNAMIC_DISPATCH(AddToTable)(dout.dtype(), ids, from, to, part);
      } else {
        HWY_DYNAMIC_DISPATCH(AddGroupsToTable)(dout.dtype(), groups, to, part);
      }
    }
  });
}

void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions) {
  parallel_ranges(stream, std::min(seq, Rows(dout).count()), dout.bytes(),
                  [&](std::int64_t begin, std::int64_t end) {
                    HWY_DYNAMIC_DISPATCH(AddToPositions)(dout, seq, dpositions, begin, end);
                  });
}

}  // namespace meshtrain::ops::cpu
#endif
