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
                        }}) {}

  void begin_micro_step(std::int64_t index) override { gradients_.begin_micro_step(index); }
  bool begin_gradients(int unit) override { return gradients_.begin(unit); }
  void end_gradients(int unit) override { gradients_.end(unit); }
  void finish_gradients() override { gradients_.finish(); }

 private:
  // The units of a bucket are neighbours in the flat layout: one message.
  void reduce(const std::vector<int>& units) {
    const auto [first, last] = std::minmax_element(units.begin(), units.end());
    const Tensor gradients = parts_.store.gradients_of_units(*first, *last);
    parts_.ranks.all_reduce(gradients, gradients, ReduceOp::kSum, Traffic::kGradients);
  }

  GradSyncParts parts_;
  WholeGradients gradients_;
};

}  // namespace

std::unique_ptr<GradSync> make_ddp(const GradSyncParts& parts, const GradSyncOptions& options) {
  return std::make_unique<Ddp>(parts, options);
}

}  // namespace meshtrain::gradsync
