#include "gradsync/gradient_norm.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "comm/agreement.h"

namespace meshtrain {
namespace {

using Nodes = std::vector<ops::SquareNode>;

int units_of(const ParamStore& store) {
  return static_cast<int>(store.units().size());
}

// A call of the gather on `sim`, which touches no memory: that of a large world would be much.
void count_gather(Communicator& ranks, Nodes& own) {
  const auto bytes = static_cast<std::int64_t>(own.size() * sizeof(ops::SquareNode));
  ranks.all_gather(Tensor(own.data(), DType::kU8, {bytes}),
                   Tensor(own.data(), DType::kU8, {bytes * ranks.size()}), Traffic::kControl);
}

}  // namespace

UnitSquares::UnitSquares(const ParamStore& store) : store_(store) {
  for (int unit = 0; unit < units_of(store); ++unit) uncounted_.push_back(store.uncounted(unit));
  for (int part = 0; part < store.sharding().parts; ++part) {
    std::vector<std::size_t>& nodes = nodes_.emplace_back();
    std::map<std::int64_t, std::size_t> known;  // by elements: many units have as many as another
    for (int unit = 0; unit < units_of(store); ++unit) {
      const std::int64_t elements = store.owned_elements(unit);
      const bool copy = store.units()[static_cast<std::size_t>(unit)].copy;  // has no gradient of its own
      const auto [count, added] = known.try_emplace(elements, 0);
      if (added) count->second = ops::square_node_cover(elements * part, elements).size();
      nodes.push_back(copy ? 0 : count->second);
    }
    longest_ = std::max(longest_, std::accumulate(nodes.begin(), nodes.end(), std::size_t{0}));
  }
}

std::vector<double> UnitSquares::sums(Stream& stream, Communicator& owners) const {
  Nodes own;
  for (int unit = 0; unit < units_of(store_); ++unit) {
    if (store_.units()[static_cast<std::size_t>(unit)].copy) continue;
    const Nodes nodes = ops::square_nodes(stream, store_.owned_gradients(unit), store_.owned_begin(unit),
                                          uncounted_[static_cast<std::size_t>(unit)]);
    own.insert(own.end(), nodes.begin(), nodes.end());
  }
  // Each part has its own number of nodes, which everybody can tell; messages have the length of the longest.
  own.resize(longest_);
  std::vector<double> sums(uncounted_.size());
  if (stream.kind() == DeviceKind::kSim) {
    if (nodes_.size() > 1) count_gather(owners, own);
    return sums;
  }
  const Nodes all =
      nodes_.size() > 1 ? gather_from_ranks<ops::SquareNode>(owners, own, Traffic::kControl) : std::move(own);
  std::vector<std::size_t> next(nodes_.size());
  for (std::size_t part = 0; part < next.size(); ++part) next[part] = part * longest_;
  for (std::size_t unit = 0; unit < sums.size(); ++unit) {
    Nodes nodes;
    for (std::size_t part = 0; part < next.size(); ++part) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(next[part]);
      nodes.insert(nodes.end(), begin, begin + static_cast<std::ptrdiff_t>(nodes_[part][unit]));
      next[part] += nodes_[part][unit];
    }
    sums[unit] = ops::combine_square_nodes(nodes);
  }
  return sums;
}

double combine_unit_sums(std::span<const double> sums, const NormPlace& place, Communicator& everyone) {
  check(sums.size() == place.unit.size(), "each unit's sum needs a place");
  const auto ranks = static_cast<std::size_t>(place.tensor_ranks);
  // One value of one rank in each place, zeros of all others: adding them up only moves them.
  std::vector<double> all(ranks * place.model_units);
  std::size_t counted = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (place.unit[i] < 0) continue;
    ++counted;
    const std::size_t index =
        static_cast<std::size_t>(place.unit[i]) * ranks + static_cast<std::size_t>(place.tensor_rank);
    if (place.counts) all[index] = sums[i];
  }
  // Data-parallel ranks alone have the same sums already.
  if (ranks == 1 && counted == place.model_units) return std::accumulate(sums.begin(), sums.end(), 0.0);
  const Tensor tensor(all.data(), DType::kF64, {static_cast<std::int64_t>(all.size())});
  everyone.all_reduce(tensor, tensor, ReduceOp::kSum, Traffic::kControl);
  double sum = 0.0;
  for (std::size_t begin = 0; begin < all.size(); begin += ranks) {
    sum += std::accumulate(all.begin() + static_cast<std::ptrdiff_t>(begin),
                           all.begin() + static_cast<std::ptrdiff_t>(begin + ranks), 0.0);
  }
  return sum;
}

}  // namespace meshtrain
