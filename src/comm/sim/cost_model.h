// What a collective costs by the algorithm that carries it out: time on Hockney's model, and bytes.
//
// Model: every rank has one link, which carries one message out and one in at the same time. A message of n
// bytes takes latency + n / bytes_per_second, whatever else the network carries; adding values takes no time.
// An algorithm goes in steps, and a step lasts as long as its longest message.
//
// Algorithms, over K ranks:
//  - server: rank 0 receives what the others have, one after the other, and sends them what they need;
//  - ring: K - 1 steps with 1/K of the payload for a reduce-scatter or an all-gather, an all-reduce is both
//    (Patarasuk & Yuan 2009); a broadcast passes K pieces along the chain of ranks;
//  - tree: a binomial tree, down for a broadcast; up, then down for the others;
//  - halving-doubling: recursive halving for a reduce-scatter, doubling for an all-gather, an all-reduce is
//  both,
//    a broadcast is a binomial scatter and an all-gather (Thakur, Rabenseifner & Gropp 2005). Where K is no
//    power of two, the ranks beyond the last one first hand what they have to a partner, and get what they need
//    at the end.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace meshtrain {

struct Link {
  double latency_seconds = 0.0;
  double bytes_per_second = 0.0;  // in each direction
};

// Ranks of one host, through its memory; ranks of several hosts, through a network.
enum class LinkKind : std::uint8_t { kLocal, kNetwork };
std::string_view name_of(LinkKind kind);
// 1 µs and 10 GB/s in a host; 5 µs and 25 GB/s (one 200 Gb/s port) between hosts.
Link default_link(LinkKind kind);

enum class CollectiveAlgorithm : std::uint8_t { kServer, kRing, kTree, kHalvingDoubling };
inline constexpr std::array kCollectiveAlgorithms = {CollectiveAlgorithm::kServer, CollectiveAlgorithm::kRing,
                                                     CollectiveAlgorithm::kTree,
                                                     CollectiveAlgorithm::kHalvingDoubling};
std::string_view name_of(CollectiveAlgorithm algorithm);

// Bytes are rounded down.
struct CollectiveCost {
  double seconds = 0.0;
  std::int64_t steps = 0;
  std::int64_t sent_bytes = 0;   // by the rank that sends most
  std::int64_t link_bytes = 0;   // in and out together, on the link that carries most
  std::int64_t total_bytes = 0;  // sent by all ranks
};

// `op`: all-reduce, reduce-scatter, all-gather or broadcast. `bytes`: the whole payload, i.e. what all-gather
// puts out and reduce-scatter takes in on each rank. Ranks from 1, a rank alone costs nothing.
CollectiveCost collective_cost(CommOp op, CollectiveAlgorithm algorithm, std::int64_t ranks, std::int64_t bytes,
                               const Link& link);

// The one that takes the least time; of equals the first in kCollectiveAlgorithms.
CollectiveAlgorithm cheapest(CommOp op, std::int64_t ranks, std::int64_t bytes, const Link& link);

}  // namespace meshtrain
