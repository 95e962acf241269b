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
        gathered_(parts.store.units().size()) {}

  void begin_micro_step(std::int64_t index) override {
    gradients_.begin_micro_step(index);
    begin_pass(options_.training_order, Traffic::kParameters);
  }
  void begin_evaluation() override { begin_pass(options_.evaluation_order, Traffic::kEvaluation); }

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
  void finish_gradients() override { gradients_.finish(); }

  std::int64_t transient_peak() const override { return pool_.peak(); }
  std::int64_t transient_capacity() const override { return pool_.capacity(); }

 private:
  struct Gathered {
    Tensor weights;  // undefined: only the owned part is there
    CommQueue::Ticket ticket = 0;
    int holds = 0;
  };
  Gathered& gathered(int unit) { return gathered_[static_cast<std::size_t>(unit)]; }

  void begin_pass(std::span<const int> order, Traffic traffic) {
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
