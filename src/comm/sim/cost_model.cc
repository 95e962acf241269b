#include "comm/sim/cost_model.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

// Counts in parts of the payload, which every algorithm cuts evenly.
class Tally {
 public:
  Tally(std::int64_t ranks, std::int64_t payload, std::int64_t parts, const Link& link)
      : ranks_(ranks), payload_(payload), parts_(parts), link_(link), sent_(ranks), received_(ranks) {}

  std::int64_t ranks() const { return ranks_; }
  std::int64_t parts() const { return parts_; }

  // `count` steps whose longest message has `parts` parts.
  void steps(std::int64_t count, std::int64_t parts) {
    steps_ += count;
    const double bytes =
        static_cast<double>(payload_) * static_cast<double>(parts) / static_cast<double>(parts_);
    seconds_ += static_cast<double>(count) * (link_.latency_seconds + bytes / link_.bytes_per_second);
  }

  void send(std::int64_t from, std::int64_t to, std::int64_t parts) {
    sent_[static_cast<std::size_t>(from)] += parts;
    received_[static_cast<std::size_t>(to)] += parts;
  }

  CollectiveCost cost() const {
    std::int64_t most_sent = 0;
    std::int64_t most_carried = 0;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      most_sent = std::max(most_sent, sent_[i]);
      most_carried = std::max(most_carried, sent_[i] + received_[i]);
      total += sent_[i];
    }
    return {seconds_, steps_, bytes_of(most_sent), bytes_of(most_carried), bytes_of(total)};
  }

 private:
  // payload · parts / parts_ without the overflow.
  std::int64_t bytes_of(std::int64_t parts) const {
    return payload_ / parts_ * parts + payload_ % parts_ * parts / parts_;
  }

  std::int64_t ranks_;
  std::int64_t payload_;
  std::int64_t parts_;
  Link link_;
  double seconds_ = 0.0;
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> sent_;  // in parts
  std::vector<std::int64_t> received_;
};

enum class Way : std::uint8_t { kIn, kOut };  // towards rank 0, or from it

void move(Tally& tally, Way way, std::int64_t rank, std::int64_t peer, std::int64_t parts) {
  way == Way::kOut ? tally.send(rank, peer, parts) : tally.send(peer, rank, parts);
}

void through_server(Tally& tally, Way way, std::int64_t parts) {
  tally.steps(tally.ranks() - 1, parts);
  for (std::int64_t r = 1; r < tally.ranks(); ++r) move(tally, way, 0, r, parts);
}

void server(Tally& tally, CommOp op) {
  const std::int64_t all = tally.parts();
  if (op == CommOp::kAllReduce || op == CommOp::kReduceScatter) through_server(tally, Way::kIn, all);
  if (op == CommOp::kAllGather) through_server(tally, Way::kIn, 1);
  if (op == CommOp::kReduceScatter) through_server(tally, Way::kOut, 1);
  if (op == CommOp::kAllGather) through_server(tally, Way::kOut, all - 1);  // a rank has its own part
  if (op == CommOp::kAllReduce || op == CommOp::kBroadcast) through_server(tally, Way::kOut, all);
}

void ring(Tally& tally, CommOp op) {
  const std::int64_t k = tally.ranks();
  if (op == CommOp::kBroadcast) {
    tally.steps(2 * k - 2, 1);  // the last of K parts leaves rank 0 after K steps, and has K - 2 ranks to pass
    for (std::int64_t r = 0; r + 1 < k; ++r) tally.send(r, r + 1, k);
    return;
  }
  const std::int64_t rounds = (op == CommOp::kAllReduce ? 2 : 1) * (k - 1);
  tally.steps(rounds, 1);
  for (std::int64_t r = 0; r < k; ++r) tally.send(r, (r + 1) % k, rounds);
}

// Binomial: the whole payload on each edge, or (scatter, gather) only the parts of the ranks below it.
void through_tree(Tally& tally, Way way, bool whole) {
  const std::int64_t k = tally.ranks();
  const auto ceiling = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(k)));
  for (std::int64_t distance = ceiling / 2; distance >= 1; distance /= 2) {
    std::int64_t longest = 0;
    for (std::int64_t r = 0; r + distance < k; r += 2 * distance) {
      const std::int64_t parts = whole ? tally.parts() : std::min(distance, k - (r + distance));
      longest = std::max(longest, parts);
      move(tally, way, r, r + distance, parts);
    }
    tally.steps(1, longest);
  }
}

void tree(Tally& tally, CommOp op) {
  if (op != CommOp::kBroadcast) through_tree(tally, Way::kIn, op != CommOp::kAllGather);
  through_tree(tally, Way::kOut, op != CommOp::kReduceScatter);
}

std::int64_t power_of_two_below(std::int64_t k) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(k)));
}

// `starts[i]`: the first part of core rank i; one more for the end. Halving: a rank keeps the half of the parts
// that it is in, and sends the other half to the rank at this distance there. Doubling is the way back.
void halve(Tally& tally, const std::vector<std::int64_t>& starts, Way way) {
  const auto core = static_cast<std::int64_t>(starts.size()) - 1;
  for (std::int64_t distance = core / 2; distance >= 1; distance /= 2) {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < core; ++i) {
      const std::int64_t peer = i ^ distance;
      const std::int64_t first = peer / distance * distance;
      const std::int64_t parts =
          starts[static_cast<std::size_t>(first + distance)] - starts[static_cast<std::size_t>(first)];
      longest = std::max(longest, parts);
      move(tally, way, i, peer, parts);
    }
    tally.steps(1, longest);
  }
}

// Between the ranks beyond the power of two and their partners.
void to_partners(Tally& tally, Way way, std::int64_t parts) {
  const std::int64_t core = power_of_two_below(tally.ranks());
  if (core == tally.ranks()) return;
  tally.steps(1, parts);
  for (std::int64_t r = core; r < tally.ranks(); ++r) move(tally, way, r - core, r, parts);
}

void halving_doubling(Tally& tally, CommOp op) {
  const std::int64_t core = power_of_two_below(tally.ranks());
  const std::int64_t all = tally.parts();
  // An all-reduce cuts the payload for the core ranks; the others for all, and a partner has two parts.
  std::vector<std::int64_t> starts(static_cast<std::size_t>(core + 1));
  for (std::int64_t i = 0; i <= core; ++i) {
    starts[static_cast<std::size_t>(i)] = op == CommOp::kAllReduce ? i : i + std::min(i, tally.ranks() - core);
  }
  if (op == CommOp::kBroadcast) through_tree(tally, Way::kOut, false);
  const bool reduces = op == CommOp::kAllReduce || op == CommOp::kReduceScatter;
  if (reduces) {
    to_partners(tally, Way::kIn, all);
    halve(tally, starts, Way::kOut);
  }
  if (op == CommOp::kReduceScatter) return to_partners(tally, Way::kOut, 1);
  if (!reduces) to_partners(tally, Way::kIn, 1);
  halve(tally, starts, Way::kIn);
  to_partners(tally, Way::kOut, reduces ? all : all - 1);  // a rank has its own part
}

}  // namespace

std::string_view name_of(LinkKind kind) {
  return kind == LinkKind::kLocal ? "local" : "network";
}

Link default_link(LinkKind kind) {
  return kind == LinkKind::kLocal ? Link{1e-6, 10e9} : Link{5e-6, 25e9};
}

std::string_view name_of(CollectiveAlgorithm algorithm) {
  constexpr std::array<std::string_view, kCollectiveAlgorithms.size()> kNames = {"server", "ring", "tree",
                                                                                 "halving-doubling"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

CollectiveCost collective_cost(CommOp op, CollectiveAlgorithm algorithm, std::int64_t ranks, std::int64_t bytes,
                               const Link& link) {
  check(ranks >= 1 && bytes >= 0 && link.latency_seconds >= 0.0 && link.bytes_per_second > 0.0,
        "the cost of a collective takes ranks, bytes and a link");
  check(op == CommOp::kAllReduce || op == CommOp::kReduceScatter || op == CommOp::kAllGather ||
            op == CommOp::kBroadcast,
        "a collective without a cost");
  if (ranks == 1) return {};
  const bool core_only = algorithm == CollectiveAlgorithm::kHalvingDoubling && op == CommOp::kAllReduce;
  Tally tally(ranks, bytes, core_only ? power_of_two_below(ranks) : ranks, link);
  switch (algorithm) {
    case CollectiveAlgorithm::kServer:
      server(tally, op);
      break;
    case CollectiveAlgorithm::kRing:
      ring(tally, op);
      break;
    case CollectiveAlgorithm::kTree:
      tree(tally, op);
      break;
    case CollectiveAlgorithm::kHalvingDoubling:
      halving_doubling(tally, op);
      break;
  }
  return tally.cost();
}

CollectiveAlgorithm cheapest(CommOp op, std::int64_t ranks, std::int64_t bytes, const Link& link) {
  return *std::min_element(kCollectiveAlgorithms.begin(), kCollectiveAlgorithms.end(),
                           [&](CollectiveAlgorithm a, CollectiveAlgorithm b) {
                             return collective_cost(op, a, ranks, bytes, link).seconds <
                                    collective_cost(op, b, ranks, bytes, link).seconds;
                           });
}

}  // namespace meshtrain
