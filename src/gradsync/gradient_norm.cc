#include "gradsync/gradient_norm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "ops/square_sum.h"

namespace meshtrain {
namespace {

using Nodes = std::vector<ops::SquareNode>;

void append(Nodes& to, const Nodes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::size_t node_count(const ParamStore& store, int unit, int part) {
  const std::int64_t elements = store.owned_elements(unit);
  return ops::square_node_cover(elements * part, elements).size();
}

}  // namespace

double gradient_square_sum(Stream& stream, const ParamStore& store, Communicator& owners) {
  const int parts = store.sharding().parts;
  const auto units = static_cast<int>(store.units().size());
  Nodes own;
  for (int unit = 0; unit < units; ++unit) {
    append(own, ops::square_nodes(stream, store.owned_gradients(unit), store.owned_begin(unit)));
  }
  // Each part has its own number of nodes, which everybody can tell; messages have the length of the longest.
  std::vector<std::vector<std::size_t>> counts(static_cast<std::size_t>(parts));
  std::size_t longest = 0;
  for (int part = 0; part < parts; ++part) {
    std::size_t total = 0;
    for (int unit = 0; unit < units; ++unit) {
      counts[static_cast<std::size_t>(part)].push_back(node_count(store, unit, part));
      total += counts[static_cast<std::size_t>(part)].back();
    }
    longest = std::max(longest, total);
  }
  own.resize(longest);
  const Nodes all =
      parts > 1 ? gather_from_ranks<ops::SquareNode>(owners, own, Traffic::kControl) : std::move(own);
  double sum = 0.0;
  std::vector<std::size_t> next(static_cast<std::size_t>(parts));
  for (std::size_t part = 0; part < next.size(); ++part) next[part] = part * longest;
  for (std::size_t unit = 0; unit < static_cast<std::size_t>(units); ++unit) {
    Nodes nodes;
    for (std::size_t part = 0; part < next.size(); ++part) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(next[part]);
      nodes.insert(nodes.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[part][unit]));
      next[part] += counts[part][unit];
    }
    if (stream.kind() != DeviceKind::kSim) sum += ops::combine_square_nodes(nodes);
  }
  return sum;
}

}  // namespace meshtrain
