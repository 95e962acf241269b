// Every collective × dtype × reduction × count, in place and out of place, in each kind of memory.
#include <algorithm>
#include <numeric>
#include <optional>

#include "comm_conformance_parts.h"

namespace meshtrain::testing {
namespace {

constexpr std::array<std::int64_t, 8> kCounts = {0, 1, 2, 3, 7, 64, 1000, 4097};
constexpr std::int64_t kLarge = 300'001;

struct Case {
  DType dtype;
  ReduceOp op;
  std::int64_t count;
  Place place;
  bool in_place;
  bool special;
};

std::string text_of(std::string_view collective, const Case& c) {
  return fmt::format("{} {} of {} {}, {}, {}", collective, name_of(c.op), c.count, name_of(c.dtype),
                     name_of(c.place), c.in_place ? "in place" : "out of place");
}

// The reduction of elements [begin, begin + count) of all ranks' inputs.
template <class T>
std::vector<T> reduced_inputs(int ranks, std::uint64_t seed, const Case& c, std::int64_t begin) {
  std::vector<T> result;
  std::vector<T> column(static_cast<std::size_t>(ranks));
  for (std::int64_t i = begin; i < begin + c.count; ++i) {
    for (int k = 0; k < ranks; ++k) column[k] = input_element<T>(seed, k, i, c.special);
    result.push_back(reference_reduce(column, c.op));
  }
  return result;
}

template <class T>
void check_all_reduce(Conformance& suite, Communicator& comm, const Case& c) {
  const std::uint64_t seed = suite.next_seed();
  const auto input = [&](std::int64_t i) { return input_element<T>(seed, comm.rank(), i, c.special); };
  const Block in(suite, c.place, c.dtype, c.count);
  const Block other(suite, c.place, c.dtype, c.in_place ? 0 : c.count);
  const Block& out = c.in_place ? in : other;
  fill_elements<T>(in.tensor(), input);
  comm.all_reduce(in.tensor(), out.tensor(), c.op);
  const std::vector<T> expected = reduced_inputs<T>(comm.size(), seed, c, 0);
  const std::string what = text_of("all-reduce", c);
  expect_elements<T>(suite, what, out.tensor(), [&](std::int64_t i) { return expected[i]; });
  if (!c.in_place) expect_elements<T>(suite, what + ", the input afterwards", in.tensor(), input);
  suite.expect(in.guards_untouched() && out.guards_untouched(), what + " wrote beside its tensors");
}

template <class T>
void check_reduce_scatter(Conformance& suite, Communicator& comm, const Case& c) {
  const std::uint64_t seed = suite.next_seed();
  const auto input = [&](std::int64_t i) { return input_element<T>(seed, comm.rank(), i, c.special); };
  const Block in(suite, c.place, c.dtype, c.count * comm.size());
  const Block other(suite, c.place, c.dtype, c.in_place ? 0 : c.count);
  const Tensor out = c.in_place ? in.piece(c.count * comm.rank(), c.count) : other.tensor();
  fill_elements<T>(in.tensor(), input);
  comm.reduce_scatter(in.tensor(), out, c.op);
  const std::vector<T> expected = reduced_inputs<T>(comm.size(), seed, c, c.count * comm.rank());
  const std::string what = text_of("reduce-scatter", c);
  expect_elements<T>(suite, what, out, [&](std::int64_t i) { return expected[i]; });
  if (!c.in_place) expect_elements<T>(suite, what + ", the input afterwards", in.tensor(), input);
  suite.expect(in.guards_untouched() && other.guards_untouched(), what + " wrote beside its tensors");
}

template <class T>
void check_all_gather(Conformance& suite, Communicator& comm, const Case& c) {
  const std::uint64_t seed = suite.next_seed();
  const Block out(suite, c.place, c.dtype, c.count * comm.size());
  const Block other(suite, c.place, c.dtype, c.in_place ? 0 : c.count);
  const Tensor in = c.in_place ? out.piece(c.count * comm.rank(), c.count) : other.tensor();
  fill_elements<T>(in, [&](std::int64_t i) { return input_element<T>(seed, comm.rank(), i, true); });
  comm.all_gather(in, out.tensor());
  const std::string what = text_of("all-gather", c);
  expect_elements<T>(suite, what, out.tensor(), [&](std::int64_t i) {
    return input_element<T>(seed, static_cast<int>(i / c.count), i % c.count, true);
  });
  suite.expect(out.guards_untouched() && other.guards_untouched(), what + " wrote beside its tensors");
}

template <class T>
void check_broadcast(Conformance& suite, Communicator& comm, const Case& c, int root) {
  const std::uint64_t seed = suite.next_seed();
  const Block data(suite, c.place, c.dtype, c.count);
  fill_elements<T>(data.tensor(), [&](std::int64_t i) { return input_element<T>(seed, comm.rank(), i, true); });
  comm.broadcast(data.tensor(), root);
  const std::string what = fmt::format("{} from rank {}", text_of("broadcast", c), root);
  expect_elements<T>(suite, what, data.tensor(),
                     [&](std::int64_t i) { return input_element<T>(seed, root, i, true); });
  suite.expect(data.guards_untouched(), what + " wrote beside its tensor");
}

// What rank `from` sends to rank `to`: uneven, with zeros.
std::int64_t uneven(std::int64_t count, int from, int to) {
  return count * ((from * 3 + to * 5) % 7) / 4;
}

template <class T>
void check_all_to_all(Conformance& suite, Communicator& comm, const Case& c, bool even) {
  const std::uint64_t seed = suite.next_seed();
  const auto sent = [&](int from, int to) { return even ? c.count : uneven(c.count, from, to); };
  std::vector<std::int64_t> send_counts, receive_counts;
  for (int k = 0; k < comm.size(); ++k) {
    send_counts.push_back(sent(comm.rank(), k));
    receive_counts.push_back(sent(k, comm.rank()));
  }
  const auto total = [](const std::vector<std::int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const Block in(suite, c.place, c.dtype, total(send_counts));
  const Block out(suite, c.place, c.dtype, total(receive_counts));
  const auto input = [&](int from, std::int64_t i) { return input_element<T>(seed, from, i, true); };
  fill_elements<T>(in.tensor(), [&](std::int64_t i) { return input(comm.rank(), i); });
  comm.all_to_all(in.tensor(), send_counts, out.tensor(), receive_counts);
  const std::string what = fmt::format("{}, {} counts", text_of("all-to-all", c), even ? "even" : "uneven");
  std::int64_t begin = 0;
  for (int from = 0; from < comm.size(); ++from) {
    std::int64_t offset = 0;
    for (int k = 0; k < comm.rank(); ++k) offset += sent(from, k);
    expect_elements<T>(suite, fmt::format("{}, piece of rank {}", what, from),
                       out.piece(begin, receive_counts[from]),
                       [&](std::int64_t i) { return input(from, offset + i); });
    begin += receive_counts[from];
  }
  suite.expect(in.guards_untouched() && out.guards_untouched(), what + " wrote beside its tensors");
}

// Small counts in each kind of memory; for others one kind after the other.
template <class Check>
void for_each_place(std::int64_t count, int turn, const Check& check) {
  if (count <= 64) {
    for (const Place place : kAllPlaces) check(place);
  } else {
    check(kAllPlaces[static_cast<std::size_t>(turn) % kAllPlaces.size()]);
  }
}

}  // namespace

void check_reductions(Conformance& suite, Communicator& comm) {
  int turn = 0;
  const auto both = [&](const Case& c) {
    with_type(c.dtype, [&]<class T>(T) {
      check_all_reduce<T>(suite, comm, c);
      check_reduce_scatter<T>(suite, comm, c);
    });
  };
  for (const DType dtype : kAllTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      for (const std::int64_t count : kCounts) {
        if (count > 1000 && (dtype != DType::kF32 || op != ReduceOp::kAvg)) continue;
        for (const bool in_place : {false, true}) {
          for_each_place(count, turn++, [&](Place place) {
            both({dtype, op, count, place, in_place, /*special=*/count % 2 != 0});
          });
        }
      }
    }
  }
  if (suite.quick()) return;
  for (const Place place : kAllPlaces) {
    const bool in_place = place == Place::kMixed;
    with_type(place == Place::kHost ? DType::kBF16 : DType::kF32, [&]<class T>(T) {
      const Case c{DTypeOf<T>::value, ReduceOp::kSum, kLarge, place, in_place, false};
      check_all_reduce<T>(suite, comm, c);
      Case piece = c;
      piece.count = kLarge / comm.size();
      check_reduce_scatter<T>(suite, comm, piece);
    });
  }
}

void check_moves(Conformance& suite, Communicator& comm) {
  int turn = 0;
  const auto each = [&](const Case& c) {
    with_type(c.dtype, [&]<class T>(T) {
      check_all_gather<T>(suite, comm, c);
      if (!c.in_place) {
        check_broadcast<T>(suite, comm, c, turn % comm.size());
        check_all_to_all<T>(suite, comm, c, true);
        check_all_to_all<T>(suite, comm, c, false);
      }
    });
  };
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (const std::int64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        ++turn;
        for_each_place(count, turn, [&](Place place) {
          each({dtype, ReduceOp::kSum, count, place, in_place, true});
        });
      }
    }
  }
  for (int root = 0; root < comm.size(); ++root) {
    check_broadcast<float>(suite, comm, {DType::kF32, ReduceOp::kSum, 5, Place::kMixed, true, true}, root);
  }
  if (suite.quick()) return;
  for (const Place place : kAllPlaces) {
    each({DType::kF32, ReduceOp::kSum, kLarge / comm.size(), place, false, true});
    check_broadcast<float>(suite, comm, {DType::kF32, ReduceOp::kSum, kLarge, place, true, true}, 0);
  }
}

}  // namespace meshtrain::testing
