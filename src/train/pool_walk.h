// How far a step of many micro-batches fills the pool of whole units (ZeRO 2 and 3), from shorter steps.
//
// Units come and go, and first fit puts each where others have left room, so that they may lie elsewhere in
// every micro-batch for a long time. But what an action does to the pool follows from what the pool holds
// before, from the kind of action, and from the units that are acquired next. So what an action did once it
// does wherever these are the same: shorter steps on a simulated device teach transitions, and a walk along the
// order of a longer one finds the peak that it has, exactly, or the first transition that was not seen yet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "pipeline/schedule.h"

namespace meshtrain {

class PoolWalk {
 public:
  // GradSync::transient_state().
  using State = std::vector<std::int64_t>;
  // The units that an action acquires, in order.
  using Acquires = std::function<std::vector<int>(PipelineStep step, int chunk)>;

  // `prefetch`: how many acquires ahead an action looks.
  PoolWalk(Acquires acquires, int prefetch) : acquires_(std::move(acquires)), prefetch_(prefetch) {}

  // The actions of a step by number, equal where they are of one kind and the next acquires are the same; then
  // the end of the step.
  std::vector<int> kinds_of(const std::vector<PipelineAction>& order, std::int64_t micro_batches);

  // An action of this kind that began with one state ended with another, and filled the pool as far as `peak`.
  // The first state of all is an empty pool.
  void learn(const State& before, int kind, const State& after, std::int64_t peak);

  struct Walk {
    std::int64_t peak = 0;
    std::optional<std::pair<int, int>> missing;  // (state, kind) that was not seen
  };
  // From an empty pool.
  Walk walk(const std::vector<int>& kinds) const;

 private:
  struct End {
    int state = 0;
    std::int64_t peak = 0;
    friend bool operator==(const End&, const End&) = default;
  };
  int number_of(const State& state) {
    return states_.emplace(state, static_cast<int>(states_.size())).first->second;
  }

  Acquires acquires_;
  int prefetch_;
  std::map<std::vector<int>, int> kinds_;
  std::map<State, int> states_;
  std::map<std::pair<int, int>, End> ends_;
};

// The number of micro-batches of the step to simulate next, from `least` to `all`: a step that comes to the
// transition `missing` of the walk of `all`, and so teaches it. If no step up to `largest`, the longest
// simulated so far, comes to it, the pool has not returned to an earlier state yet, and the step is about twice
// as long. `round`: micro-batches after which the order of a schedule repeats itself. `kinds_of`: of a step of
// some number of micro-batches.
std::int64_t next_steps(const PoolWalk& walk, const std::pair<int, int>& missing, std::int64_t least,
                        std::int64_t largest, std::int64_t all, std::int64_t round,
                        const std::function<std::vector<int>(std::int64_t micro_batches)>& kinds_of);

}  // namespace meshtrain
