#include "train/pool_walk.h"

#include <algorithm>

#include "base/error.h"

namespace meshtrain {

std::vector<int> PoolWalk::kinds_of(const std::vector<PipelineAction>& order, std::int64_t micro_batches) {
  std::map<std::pair<PipelineStep, int>, std::vector<int>> acquires;
  std::vector<int> all;
  std::vector<std::size_t> ends;
  for (const PipelineAction& action : order) {
    const auto [own, is_new] = acquires.try_emplace({action.step, action.chunk});
    if (is_new) own->second = acquires_(action.step, action.chunk);
    all.insert(all.end(), own->second.begin(), own->second.end());
    ends.push_back(all.size());
  }
  const auto number_of = [&](const std::vector<int>& kind) {
    return kinds_.emplace(kind, static_cast<int>(kinds_.size())).first->second;
  };
  std::vector<int> numbers;
  numbers.reserve(order.size() + 1);
  std::vector<int> kind;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const PipelineAction& action = order[i];
    kind = {static_cast<int>(action.step), action.chunk, action.micro_batch == 0 ? 1 : 0,
            action.micro_batch + 1 == micro_batches ? 1 : 0};
    const std::size_t next = std::min(all.size() - ends[i], static_cast<std::size_t>(prefetch_));
    kind.insert(kind.end(), all.begin() + static_cast<std::ptrdiff_t>(ends[i]),
                all.begin() + static_cast<std::ptrdiff_t>(ends[i] + next));
    numbers.push_back(number_of(kind));
  }
  numbers.push_back(number_of({}));
  return numbers;
}

void PoolWalk::learn(const State& before, int kind, const State& after, std::int64_t peak) {
  const int from = number_of(before);
  const End end = {.state = number_of(after), .peak = peak};
  const auto [known, is_new] = ends_.emplace(std::pair(from, kind), end);
  check(is_new || known->second == end, "an action does not follow from what the pool holds");
}

PoolWalk::Walk PoolWalk::walk(const std::vector<int>& kinds) const {
  Walk walk;
  int state = 0;
  for (const int kind : kinds) {
    const auto end = ends_.find({state, kind});
    if (end == ends_.end()) {
      walk.missing = {state, kind};
      return walk;
    }
    walk.peak = std::max(walk.peak, end->second.peak);
    state = end->second.state;
  }
  return walk;
}

std::int64_t next_steps(const PoolWalk& walk, const std::pair<int, int>& missing, std::int64_t least,
                        std::int64_t largest, std::int64_t all, std::int64_t round,
                        const std::function<std::vector<int>(std::int64_t micro_batches)>& kinds_of) {
  const auto teaches = [&](std::int64_t steps) { return walk.walk(kinds_of(steps)).missing == missing; };
  std::int64_t steps = least;
  while (steps < all && !teaches(steps)) ++steps;
  if (steps <= largest) return steps;
  const std::int64_t longer = std::min(steps + largest / round * round, all);
  return teaches(longer) ? longer : steps;
}

}  // namespace meshtrain
