#include "pipeline/order_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace meshtrain {
namespace {

// Of one stage.
class OrderCheck {
 public:
  OrderCheck(const PipelineShape& shape, int stage)
      : shape_(shape), stage_(stage), done_(3, std::vector<std::int64_t>(shape.chunks, 0)) {}

  void run(const std::vector<PipelineAction>& order, bool splits) {
    for (const PipelineAction& action : order) {
      const bool in_range = action.chunk >= 0 && action.chunk < shape_.chunks;
      if (!in_range || action.micro_batch != done(action.step, action.chunk)) {
        fail(action, "is not the next micro-batch of its chunk in this step");
      }
      if (action.micro_batch >= input_ready(action)) fail(action, "comes before what it needs");
      ++done_[static_cast<std::size_t>(action.step)][action.chunk];
    }
    for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
      for (const PipelineStep step :
           {PipelineStep::kForward, PipelineStep::kBackward, PipelineStep::kBackwardWeight}) {
        if (step == PipelineStep::kBackwardWeight && !splits) continue;
        if (done(step, chunk) != shape_.micro_batches) fail({step, chunk, done(step, chunk)}, "is missing");
      }
    }
  }

 private:
  std::int64_t done(PipelineStep step, int chunk) const { return done_[static_cast<std::size_t>(step)][chunk]; }

  // Micro-batches for which the stage itself has done what the action needs.
  std::int64_t input_ready(const PipelineAction& action) const {
    const bool alone = shape_.stages == 1;
    switch (action.step) {
      case PipelineStep::kForward:
        return alone && action.chunk > 0 ? done(PipelineStep::kForward, action.chunk - 1)
                                         : shape_.micro_batches;
      case PipelineStep::kBackward: {
        const std::int64_t own = done(PipelineStep::kForward, action.chunk);
        const bool last = !alone || action.chunk + 1 == shape_.chunks;
        return last ? own : std::min(own, done(PipelineStep::kBackward, action.chunk + 1));
      }
      case PipelineStep::kBackwardWeight:
        return done(PipelineStep::kBackward, action.chunk);
    }
    return 0;
  }

  [[noreturn]] void fail(const PipelineAction& action, std::string_view what) const {
    throw std::logic_error(
        fmt::format("in the order of stage {}, {} {}", stage_, to_string(action, shape_.chunks), what));
  }

  const PipelineShape shape_;
  const int stage_;
  std::vector<std::vector<std::int64_t>> done_;  // micro-batches by step and chunk
};

bool splits_backward(const std::vector<std::vector<PipelineAction>>& orders) {
  return std::any_of(orders.begin(), orders.end(), [](const std::vector<PipelineAction>& order) {
    return std::any_of(order.begin(), order.end(), [](const PipelineAction& action) {
      return action.step == PipelineStep::kBackwardWeight;
    });
  });
}

}  // namespace

void check_orders(const PipelineShape& shape, const std::vector<std::vector<PipelineAction>>& orders) {
  const bool splits = splits_backward(orders);
  for (int stage = 0; stage < shape.stages; ++stage) OrderCheck(shape, stage).run(orders[stage], splits);
}

}  // namespace meshtrain
