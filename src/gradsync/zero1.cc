// Stage 1: masters and optimizer state are sharded. Gradients are whole on every rank; each needs the sum of
// its own part only.
#include "gradsync/strategies.h"
#include "gradsync/weight_gather.h"
#include "gradsync/whole_gradients.h"
#include "ops/transfer.h"

namespace meshtrain::gradsync {
namespace {

class Zero1 final : public GradSync {
 public:
  Zero1(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        gradients_(parts, options,
                   {.reduce = [this](const std::vector<int>& units) { reduce(units); },
                    .take =
                        [this](Stream& stream, int unit, const Tensor& part) {
                          ops::copy(stream, part, parts_.store.owned_gradients(unit));
                        }}),
        weights_(parts) {}

  void begin_step(std::span<const int> /*acquires*/) override { gradients_.begin_step(); }
  void acquire(int unit) override { weights_.wait(unit); }
  bool begin_gradients(int unit) override { return gradients_.begin(unit); }
  void end_gradients(int unit) override { gradients_.end(unit); }
  bool begin_tied_gradients() override { return gradients_.tied.begin(); }
  void end_tied_gradients() override { gradients_.tied.end(); }
  void finish_gradients() override { gradients_.finish(); }
  void publish_weights(int unit, Traffic traffic) override { weights_.publish(unit, traffic); }

 private:
  void reduce(const std::vector<int>& units) {
    for (const int unit : units) {
      parts_.ranks.reduce_scatter(parts_.store.unit_gradients(unit), parts_.store.owned_gradients(unit),
                                  ReduceOp::kSum, Traffic::kGradients);
    }
  }

  GradSyncParts parts_;
  WholeGradients gradients_;
  WeightGather weights_;
};

}  // namespace

std::unique_ptr<GradSync> make_zero1(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Zero1>(parts, options);
}

}  // namespace meshtrain::gradsync
