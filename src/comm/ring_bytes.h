// Bytes that one of K ranks sends for a payload of S bytes in ring algorithms (Patarasuk & Yuan 2009),
// rounded down: what communicators count, and what busbw of the field's benchmarks stands on.
#pragma once

#include <cstdint>

namespace meshtrain {

// Each rank's share of the payload, K - 1 times.
constexpr std::int64_t ring_pass_bytes(std::int64_t payload, std::int64_t ranks) {
  const std::int64_t whole = payload / ranks * (ranks - 1);
  return whole + payload % ranks * (ranks - 1) / ranks;
}
// Reduce-scatter, all-gather (payload: the whole, all pieces) and even all-to-all.
constexpr std::int64_t ring_reduce_scatter_bytes(std::int64_t payload, std::int64_t ranks) {
  return ring_pass_bytes(payload, ranks);
}
constexpr std::int64_t ring_all_gather_bytes(std::int64_t payload, std::int64_t ranks) {
  return ring_pass_bytes(payload, ranks);
}
constexpr std::int64_t ring_all_reduce_bytes(std::int64_t payload, std::int64_t ranks) {
  return payload / ranks * 2 * (ranks - 1) + payload % ranks * 2 * (ranks - 1) / ranks;
}

}  // namespace meshtrain
