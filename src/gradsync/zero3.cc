// Stage 3: weights are sharded too. A unit is gathered ahead of its use, freed after it, and gathered again for
// the backward pass (recompute included).
#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "gradsync/sharded_gradients.h"
#include "gradsync/strategies.h"

namespace meshtrain::gradsync {
namespace {

class Zero3 final : public GradSync {
 public:
  Zero3(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        options_(options),
        pool_(parts.device, options.transient_bytes),
        gradients_(parts, options, pool_),
        copies_(parts),
        gathered_(parts.store.units().size()) {}

  void begin_step(std::span<const int> acquires) override {
    gradients_.begin_step();
    begin_pass(acquires, Traffic::kParameters);
  }
  void begin_backward() override { gradients_.begin_backward(); }
  void begin_evaluation(std::span<const int> acquires) override { begin_pass(acquires, Traffic::kEvaluation); }

  void acquire(int unit) override {
    check(next_ < order_.size() && order_[next_] == unit, "units are acquired in the order announced");
    ++next_;
    Gathered& g = gathered(unit);
    if (!g.weights.defined()) gather(unit);
    parts_.queue.wait(g.ticket);
    ++g.holds;
    prefetch();
  }

  void release(int unit) override {
    Gathered& g = gathered(unit);
    check(g.holds > 0, "a unit is released as often as it was acquired");
    if (--g.holds > 0) return;
    parts_.store.place_weights(unit, {});
    pool_.release(std::exchange(g.weights, {}));
  }

  bool begin_gradients(int unit) override {
    gradients_.begin(unit);
    return false;
  }
  void end_gradients(int unit) override { gradients_.end(unit); }
  bool begin_tied_gradients() override { return gradients_.tied.begin(); }
  void end_tied_gradients() override { gradients_.tied.end(); }
  void finish_gradients() override { gradients_.finish(); }
  // Gathered at each use.
  void publish_weights(int unit, Traffic traffic) override { copies_.pass_on(unit, traffic); }

  std::int64_t transient_peak() const override { return pool_.peak(); }
  std::int64_t take_transient_peak() override { return pool_.take_peak(); }
  std::vector<std::int64_t> transient_state() const override {
    std::vector<std::int64_t> state;
    gradients_.append_state(state);
    for (std::size_t unit = 0; unit < gathered_.size(); ++unit) {
      const Gathered& g = gathered_[unit];
      if (!g.weights.defined()) continue;
      state.insert(state.end(), {static_cast<std::int64_t>(unit), pool_.offset_of(g.weights), g.holds});
    }
    return state;
  }
  std::int64_t transient_capacity() const override { return pool_.capacity(); }

 private:
  struct Gathered {
    Tensor weights;  // undefined: only the owned part is there
    CommQueue::Ticket ticket = 0;
    int holds = 0;
  };
  Gathered& gathered(int unit) { return gathered_[static_cast<std::size_t>(unit)]; }

  void begin_pass(std::span<const int> order, Traffic traffic) {
    check(next_ == order_.size(), "all that was announced is acquired");
    order_ = order;
    next_ = 0;
    traffic_ = traffic;
  }

  void gather(int unit) {
    Gathered& g = gathered(unit);
    ParamStore& store = parts_.store;
    g.weights = pool_.allocate(store.compute_dtype(), store.units()[static_cast<std::size_t>(unit)].elements);
    store.place_weights(unit, g.weights);
    g.ticket = parts_.queue.submit(
        [this, unit, whole = g.weights, traffic = traffic_](Stream&) {
          parts_.ranks.all_gather(parts_.store.owned_weights(unit), whole, traffic);
        },
        "gather weights");
  }

  // The units after this one that are not there yet. One that is still held for an earlier use is freed and
  // gathered again when its turn comes.
  void prefetch() {
    const std::size_t end = std::min(next_ + static_cast<std::size_t>(options_.prefetch), order_.size());
    for (std::size_t i = next_; i < end; ++i) {
      if (!gathered(order_[i]).weights.defined()) gather(order_[i]);
    }
  }

  GradSyncParts parts_;
  GradSyncOptions options_;
  TransientPool pool_;
  ShardedGradients gradients_;
  TiedWeights copies_;
  std::vector<Gathered> gathered_;
  std::span<const int> order_;
  std::size_t next_ = 0;
  Traffic traffic_ = Traffic::kParameters;
};

}  // namespace

std::unique_ptr<GradSync> make_zero3(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Zero3>(parts, options);
}

}  // namespace meshtrain::gradsync
