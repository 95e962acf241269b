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

// Tokens by the row of a table that holds the ids from `first_id` on.
struct TokenRows {
  std::span<const std::int32_t> ids;
  std::int64_t first_id;
  std::int64_t rows;

  // Whether the table has a row for token m.
  bool held(std::size_t m) const { return ids[m] >= first_id && ids[m] - first_id < rows; }
  std::int32_t row(std::size_t m) const { return static_cast<std::int32_t>(ids[m] - first_id); }
};

struct Lookup {
  TokenRows tokens;
  Rows table;
  const void* zeros;  // in the place of a row that the table does not have
  Rows positions;
  std::int64_t seq;
  std::int64_t first_position;

  template <class T>
  const T* token_row(std::int64_t m) const {
    const auto i = static_cast<std::size_t>(m);
    return tokens.held(i) ? table.row<T>(tokens.row(i)) : static_cast<const T*>(zeros);
  }
};

// Rows of dout by the row of the table that they are added to: those of targets[i] start at the addresses
// rows[first[i]], …, rows[first[i + 1] - 1], in batch order.
struct RowGroups {
  std::vector<std::int32_t> targets;
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

// Adds columns [begin, end).
template <class T, class To>
HWY_INLINE void add_row(const T* from, To* to, std::int64_t begin, std::int64_t end) {
  for_each_vector(end - begin, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Add(load(to + begin + i, part), load(from + begin + i, part)), to + begin + i, part);
  });
}

// The same for several rows, in order, in fp32, rounded once.
template <class T>
HWY_INLINE void add_rows(std::span<const void* const> rows, T* to, std::int64_t begin, std::int64_t end) {
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
    const T* token = lookup.token_row<T>(m);
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

// To fp32, where the table itself can hold a sum between two additions.
void AddToTable(DType dtype, const TokenRows& tokens, const Rows& dout, const Rows& dtable,
                const TablePart& part) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::size_t m = 0; m < tokens.ids.size(); ++m) {
      if (!tokens.held(m) || tokens.row(m) % part.modulus != part.residue) continue;
      add_row(dout.row<T>(static_cast<std::int64_t>(m)), dtable.row<float>(tokens.row(m)), part.begin,
              part.end);
    }
  });
}

// To fp32.
void AddToPositions(DType dtype, const Rows& dout, std::int64_t seq, const Rows& dpositions, std::int64_t begin,
                    std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t p = begin; p < end; ++p) {
      for (std::int64_t m = p; m < dout.count(); m += seq) {
        add_row(dout.row<T>(m), dpositions.row<float>(p), 0, dout.width());
      }
    }
  });
}

// To the rows' own dtype.
void AddGroupsToTable(DType dtype, const RowGroups& groups, const Rows& table, const TablePart& part) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::size_t i = 0; i < groups.targets.size(); ++i) {
      if (groups.targets[i] % part.modulus != part.residue) continue;
      add_rows(groups.rows_of(i), table.row<T>(groups.targets[i]), part.begin, part.end);
    }
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {
namespace {

TokenRows token_rows(const Tensor& tokens, const Tensor& table, std::int64_t first_id) {
  const std::span<const std::int32_t> ids(tokens.data<std::int32_t>(),
                                          static_cast<std::size_t>(tokens.numel()));
  check(std::all_of(ids.begin(), ids.end(), [](std::int32_t id) { return id >= 0; }),
        "embedding: a token is negative");
  return {ids, first_id, table.dim(0)};
}

// A stable radix sort by digits of ten bits (Knuth, volume 3, 5.2.5).
RowGroups rows_by_token(const TokenRows& tokens, const Rows& dout) {
  constexpr std::uint32_t kBits = 10;
  constexpr std::uint32_t kMask = (1U << kBits) - 1;
  std::vector<std::uint32_t> order;
  order.reserve(tokens.ids.size());
  for (std::uint32_t m = 0; m < tokens.ids.size(); ++m) {
    if (tokens.held(m)) order.push_back(m);
  }
  std::vector<std::uint32_t> next(order.size());
  for (std::uint32_t shift = 0; (tokens.rows - 1) >> shift > 0; shift += kBits) {
    const auto digit = [&](std::uint32_t m) {
      return static_cast<std::uint32_t>(tokens.row(m)) >> shift & kMask;
    };
    std::array<std::uint32_t, kMask + 2> begin{};
    for (const std::uint32_t m : order) ++begin[digit(m) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const std::uint32_t m : order) next[begin[digit(m)]++] = m;
    order.swap(next);
  }
  RowGroups groups;
  for (const std::uint32_t m : order) {
    if (groups.targets.empty() || tokens.row(m) != groups.targets.back()) {
      groups.targets.push_back(tokens.row(m));
      groups.first.push_back(groups.rows.size());
    }
    groups.rows.push_back(dout.row<std::byte>(m));
  }
  groups.first.push_back(groups.rows.size());
  return groups;
}

RowGroups rows_by_position(std::int64_t seq, const Rows& dout) {
  RowGroups groups;
  for (std::int64_t p = 0; p < std::min(seq, dout.count()); ++p) {
    groups.targets.push_back(static_cast<std::int32_t>(p));
    groups.first.push_back(groups.rows.size());
    for (std::int64_t m = p; m < dout.count(); m += seq) groups.rows.push_back(dout.row<std::byte>(m));
  }
  groups.first.push_back(groups.rows.size());
  return groups;
}

// Calls body(part) for parts that together are the table, each on one thread: strips of columns first, since
// they share the work evenly, then classes of rows when there are more threads than strips.
template <class Body>
void over_parts(const Stream& stream, std::int64_t width, std::int64_t bytes, const Body& body) {
  constexpr std::int64_t kCacheLine = 16;
  constexpr std::int64_t kMinColumns = 64;
  const std::int64_t lines = (width + kCacheLine - 1) / kCacheLine;
  const std::int64_t strips = std::clamp<std::int64_t>(width / kMinColumns, 1, stream.threads());
  const std::int64_t classes = (stream.threads() + strips - 1) / strips;
  parallel_ranges(stream, strips * classes, bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t strip = item % strips;
      body(TablePart{strip * lines / strips * kCacheLine,
                     std::min((strip + 1) * lines / strips * kCacheLine, width),
                     static_cast<std::int32_t>(classes), static_cast<std::int32_t>(item / strips)});
    }
  });
}

}  // namespace

HWY_EXPORT(LookUp);
HWY_EXPORT(AddToTable);
HWY_EXPORT(AddToPositions);
HWY_EXPORT(AddGroupsToTable);

void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out,
                       std::int64_t first_id) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(table.dim(1) * size_of(table.dtype())));
  const Lookup lookup{.tokens = token_rows(tokens, table, first_id),
                      .table = Rows(table),
                      .zeros = zeros.data(),
                      .positions = Rows(positions),
                      .seq = seq,
                      .first_position = first_position};
  const Rows to(out);
  parallel_ranges(stream, to.count(), 2 * out.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(LookUp)(out.dtype(), lookup, to, begin, end);
  });
}

void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable,
                        std::int64_t first_id) {
  const TokenRows rows = token_rows(tokens, dtable, first_id);
  const Rows from(dout);
  const Rows to(dtable);
  const std::int64_t bytes = dout.numel() * (size_of(dout.dtype()) + 2 * size_of(dtable.dtype()));
  if (dtable.dtype() == DType::kF32) {
    return over_parts(stream, to.width(), bytes, [&](const TablePart& part) {
      HWY_DYNAMIC_DISPATCH(AddToTable)(dout.dtype(), rows, from, to, part);
    });
  }
  const RowGroups groups = rows_by_token(rows, from);
  over_parts(stream, to.width(), bytes, [&](const TablePart& part) {
    HWY_DYNAMIC_DISPATCH(AddGroupsToTable)(dout.dtype(), groups, to, part);
  });
}

void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions) {
  const Rows from(dout);
  const Rows to(dpositions);
  if (dpositions.dtype() == DType::kF32) {
    return parallel_ranges(stream, std::min(seq, from.count()), dout.bytes(),
                           [&](std::int64_t begin, std::int64_t end) {
                             HWY_DYNAMIC_DISPATCH(AddToPositions)(dout.dtype(), from, seq, to, begin, end);
                           });
  }
  const RowGroups groups = rows_by_position(seq, from);
  over_parts(stream, to.width(), dout.bytes(), [&](const TablePart& part) {
    HWY_DYNAMIC_DISPATCH(AddGroupsToTable)(dout.dtype(), groups, to, part);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
