// Stage 2: gradients are sharded too, reduced unit by unit as they become ready.
#include "gradsync/sharded_gradients.h"
#include "gradsync/strategies.h"
#include "gradsync/weight_gather.h"

namespace meshtrain::gradsync {
namespace {

class Zero2 final : public GradSync {
 public:
  Zero2(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        pool_(parts.device, options.transient_bytes),
        gradients_(parts, options, pool_),
        weights_(parts) {}

  void begin_step(std::span<const int> /*acquires*/) override { gradients_.begin_step(); }
  void begin_backward() override { gradients_.begin_backward(); }
  void acquire(int unit) override { weights_.wait(unit); }
  bool begin_gradients(int unit) override {
    gradients_.begin(unit);
    return false;
  }
  void end_gradients(int unit) override { gradients_.end(unit); }
  bool begin_tied_gradients() override { return gradients_.tied.begin(); }
  void end_tied_gradients() override { gradients_.tied.end(); }
  void finish_gradients() override { gradients_.finish(); }
  void publish_weights(int unit, Traffic traffic) override { weights_.publish(unit, traffic); }

  std::int64_t transient_peak() const override { return pool_.peak(); }
  std::int64_t take_transient_peak() override { return pool_.take_peak(); }
  std::vector<std::int64_t> transient_state() const override {
    std::vector<std::int64_t> state;
    gradients_.append_state(state);
    return state;
  }
  std::int64_t transient_capacity() const override { return pool_.capacity(); }

 private:
  GradSyncParts parts_;
  TransientPool pool_;
  ShardedGradients gradients_;
  WeightGather weights_;
};

}  // namespace

std::unique_ptr<GradSync> make_zero2(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Zero2>(parts, options);
}

}  // namespace meshtrain::gradsync
