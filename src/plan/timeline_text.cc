#include "plan/timeline_text.h"

#include <fmt/format.h>

#include "base/text_wrap.h"
#include "pipeline/timeline.h"
#include "train/assembly.h"
#include "train/stages.h"

namespace meshtrain {

std::string timeline_text(const Plan& plan, const Config& config, int columns) {
  const PipelineShape shape = pipeline_of(config);
  const PipelineSchedule& schedule = schedule_of(config.mesh);
  if (shape.stages == 1)
    return "mesh.pp = 1: one stage has the whole model, and there is no pipeline to draw.\n";
  const auto flops = [&](int stage, const PipelineAction& action) {
    const PiecePlan& piece =
        plan.stages[static_cast<std::size_t>(stage)].pieces[static_cast<std::size_t>(action.chunk)];
    return static_cast<double>(piece.flops[static_cast<std::size_t>(action.step)]);
  };
  const Timeline timeline = simulate(shape, orders_of(schedule, shape), {.action = flops, .transfer = 0.0});
  const std::string text =
      fmt::format("{}, {} stages, {} micro-batch{}{}\n", schedule.name, shape.stages, shape.micro_batches,
                  shape.micro_batches == 1 ? "" : "es",
                  shape.chunks > 1 ? fmt::format(", {} pieces a stage", shape.chunks) : "") +
      draw(schedule, shape, columns) +
      fmt::format("with the FLOPs of this model's pieces, and transfers that take no time: idle {:.1f} %\n",
                  100.0 * timeline.idle_fraction());
  return wrap(text, static_cast<std::size_t>(columns));
}

}  // namespace meshtrain
