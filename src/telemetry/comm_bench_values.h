// What a benchmark's ranks put in, and what has to come out.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.h"

namespace meshtrain {

// Element `i` of what rank `rank` puts in: a whole number from 0 to 15, which every dtype holds.
inline std::int64_t bench_value(int rank, std::int64_t i) {
  const auto mixed = static_cast<std::uint64_t>(i + 1) * 0x9E3779B97F4A7C15U +
                     static_cast<std::uint64_t>(rank) * 0xBF58476D1CE4E5B9U;
  return static_cast<std::int64_t>((mixed ^ (mixed >> 32U)) * 0x94D049BB133111EBU >> 60U);
}

void fill_with_bench_values(const Tensor& tensor, int rank);

// Where an element of a result comes from: element `index` of `rank`, or of all ranks where it is reduced.
struct BenchSource {
  int rank = 0;
  std::int64_t index = 0;
};

// How many elements of `out` differ from `call`'s result over `ranks` ranks; source_of(i) is of element i.
std::int64_t count_wrong(const Tensor& out, const CommCall& call, int ranks,
                         const std::function<BenchSource(std::int64_t)>& source_of);

}  // namespace meshtrain
