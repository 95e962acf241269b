// Stage 0: every rank keeps everything; gradients are all-reduced.
#include <algorithm>

#include "gradsync/strategies.h"
#include "gradsync/whole_gradients.h"

namespace meshtrain::gradsync {
namespace {

class Ddp final : public GradSync {
 public:
  Ddp(const GradSyncParts& parts, const GradSyncOptions& options)
      : parts_(parts),
        gradients_(parts, options,
                   {.reduce = [this](const std::vector<int>& units) { reduce(units); },
                    .take =
                        [this](Stream&, int unit, const Tensor& part) {
                          parts_.ranks.all_gather(part, parts_.store.unit_gradients(unit), Traffic::kGradients);
                        }}),
        copies_(parts) {}

  void begin_step(std::span<const int> /*acquires*/) override { gradients_.begin_step(); }
  void acquire(int unit) override { copies_.wait(unit); }
  bool begin_gradients(int unit) override { return gradients_.begin(unit); }
  void end_gradients(int unit) override { gradients_.end(unit); }
  bool begin_tied_gradients() override { return gradients_.tied.begin(); }
  void end_tied_gradients() override { gradients_.tied.end(); }
  void finish_gradients() override { gradients_.finish(); }
  void publish_weights(int unit, Traffic traffic) override { copies_.pass_on(unit, traffic); }

 private:
  // The units of a bucket are neighbours in the flat layout: one message.
  void reduce(const std::vector<int>& units) {
    const auto [first, last] = std::minmax_element(units.begin(), units.end());
    const Tensor gradients = parts_.store.gradients_of_units(*first, *last);
    parts_.ranks.all_reduce(gradients, gradients, ReduceOp::kSum, Traffic::kGradients);
  }

  GradSyncParts parts_;
  WholeGradients gradients_;
  TiedWeights copies_;
};

}  // namespace

std::unique_ptr<GradSync> make_ddp(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Ddp>(parts, options);
}

}  // namespace meshtrain::gradsync
