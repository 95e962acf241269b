#include "comm/world.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace meshtrain {

std::unique_ptr<Communicator> World::everyone(const std::string& name) {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(name, ranks);
}

int World::place_in(const std::vector<int>& ranks) const {
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  check(self != ranks.end(), "a rank creates the groups that it is in");
  return static_cast<int>(self - ranks.begin());
}

}  // namespace meshtrain
