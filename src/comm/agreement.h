// Small values that ranks agree on. All are collective calls of the group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace meshtrain {

// What all ranks failed at together, in the same words: no rank's own. (Some may meanwhile be elsewhere, and
// lose the others before they come to it.)
class AgreedError : public RunError {
 public:
  using RunError::RunError;
};

// Whether any rank says so.
bool any_rank(Communicator& ranks, bool says_so);
// Rank 0's text.
std::string text_of_first(Communicator& ranks, const std::string& text);
// Everybody's texts in rank order on rank 0; on the others none.
std::vector<std::string> texts_at_first(Communicator& ranks, const std::string& text);

template <class T>
T sum_of_ranks(Communicator& ranks, T value, Traffic traffic) {
  const Tensor tensor(&value, DTypeOf<T>::value, {1});
  ranks.all_reduce(tensor, tensor, ReduceOp::kSum, traffic);
  return value;
}

// Everybody's values in rank order; each rank brings the same number.
template <class T>
std::vector<T> gather_from_ranks(Communicator& ranks, std::span<const T> own, Traffic traffic) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> mine(own.begin(), own.end());
  std::vector<T> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  const auto bytes_of = [](std::vector<T>& values) {
    return Tensor(values.data(), DType::kU8, {static_cast<std::int64_t>(values.size() * sizeof(T))});
  };
  ranks.all_gather(bytes_of(mine), bytes_of(all), traffic);
  return all;
}

}  // namespace meshtrain
