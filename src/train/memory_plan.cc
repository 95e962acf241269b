#include "train/memory_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/engines.h"
#include "telemetry/units.h"
#include "train/evaluation.h"
#include "train/pool_walk.h"
#include "train/stages.h"
#include "train/step.h"

namespace meshtrain {
namespace {

// A rank whose steps are simulated over measuring arenas.
class MeasuredRank {
 public:
  MeasuredRank(const Config& config, int rank)
      : config_(config),
        rank_(rank),
        pipeline_(pipeline_of(config)),
        walk_(
            [this](PipelineStep step, int chunk) {
              return acquires_.at({step, chunk});
            },
            static_cast<int>(config.mesh.prefetch)) {}

  // Every action gives back what it takes of an arena, but for slots, which the assembly counts in the order of
  // a whole step. So two micro-batches show what the first one takes, and any other. The pool of whole units
  // (ZeRO 2 and 3) is walked through.
  ArenaSizes measure() {
    if (config_.mesh.zero < 2) return simulate(std::min<std::int64_t>(pipeline_.micro_batches, 2));
    ArenaSizes sizes = simulate(few());
    sizes.transient = std::max(pool_peak_of_evaluation_, pool_peak());
    return sizes;
  }

 private:
  // Micro-batches of the warm-up, some rounds and the end of every schedule but gpipe.
  std::int64_t few() const {
    return std::min(pipeline_.micro_batches, std::int64_t{4} * pipeline_.stages * pipeline_.chunks + 2);
  }

  std::int64_t pool_peak() {
    const auto kinds_of = [this](std::int64_t micro_batches) {
      return walk_.kinds_of(order_of(micro_batches), micro_batches);
    };
    const std::vector<int> all = kinds_of(pipeline_.micro_batches);
    for (std::int64_t largest = few();;) {
      const PoolWalk::Walk walk = walk_.walk(all);
      if (!walk.missing) return walk.peak;
      const std::int64_t next =
          next_steps(walk_, *walk.missing, few(), largest, pipeline_.micro_batches, pipeline_.stages, kinds_of);
      simulate(next);
      largest = std::max(largest, next);
    }
  }

  std::vector<PipelineAction> order_of(std::int64_t micro_batches) const {
    PipelineShape shape = pipeline_;
    shape.micro_batches = micro_batches;
    return schedule_of(config_.mesh).order(shape, stage_);
  }

  // One step, and one evaluation where the run has any.
  ArenaSizes simulate(std::int64_t micro_batches) {
    const std::unique_ptr<World> world = make_sim_world(rank_, static_cast<int>(ranks_of(config_.mesh)));
    const std::unique_ptr<Device> device = world->make_device();
    Assembly assembly(with_micro_steps(config_, micro_batches), *device, *world, std::nullopt);
    stage_ = static_cast<int>(assembly.groups.place("pp"));
    for (const PipelineAction& action : assembly.order()) {
      acquires_.try_emplace({action.step, action.chunk}, assembly.acquires_of(action));
    }
    const auto zeros = [&](std::int64_t count) {
      return std::vector<std::int32_t>(static_cast<std::size_t>(assembly.micro_batch_shape().tokens() * count),
                                       0);
    };
    train(assembly, zeros(micro_batches));
    if (evaluates(config_)) {
      const std::vector<std::int32_t> one = zeros(1);
      eval_step(assembly, {.tokens = one, .targets = one});
      pool_peak_of_evaluation_ = std::max(pool_peak_of_evaluation_, assembly.sync->take_transient_peak());
    }
    return assembly.arena_peaks();
  }

  // Teaches the walk what every action does.
  void train(Assembly& assembly, const std::vector<std::int32_t>& zeros) {
    const std::vector<int> kinds = walk_.kinds_of(assembly.order(), assembly.micro_steps());
    std::size_t done = 0;
    PoolWalk::State before = assembly.sync->transient_state();
    const auto learn = [&] {
      PoolWalk::State after = assembly.sync->transient_state();
      walk_.learn(before, kinds[done++], after, assembly.sync->take_transient_peak());
      before = std::move(after);
    };
    if (config_.mesh.zero >= 2) assembly.executor->set_watch([&](const PipelineAction&) { learn(); });
    train_step(assembly, {.tokens = zeros, .targets = zeros}, 0.0, 1);
    if (config_.mesh.zero >= 2) learn();
    assembly.executor->set_watch(nullptr);
  }

  const Config& config_;
  int rank_;
  PipelineShape pipeline_;
  int stage_ = 0;
  std::map<std::pair<PipelineStep, int>, std::vector<int>> acquires_;
  PoolWalk walk_;
  std::int64_t pool_peak_of_evaluation_ = 0;
};

}  // namespace

ArenaSizes measure_arenas(const Config& config, int rank) {
  return MeasuredRank(config, rank).measure();
}

MemoryPlan memory_of_rank(const Config& config, int rank) {
  MemoryPlan plan{.arenas = measure_arenas(config, rank), .use = {}};
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  const Assembly planned(config, *device, *world, plan.arenas);
  plan.use = planned.planned_memory();
  plan.checkpoint_copy = static_cast<std::int64_t>(planned.checkpoint_copy().size());
  return plan;
}

ArenaSizes plan_memory(const Config& config, const Device& device, const World& world) {
  const MemoryPlan plan = memory_of_rank(config, world.rank());
  const MemoryUse& need = plan.use;
  const std::int64_t available = device.available_bytes();
  if (need.total() * world.local_size() > available) {
    const std::string ranks =
        world.local_size() > 1 ? fmt::format(" for each of the {} ranks of this host", world.local_size()) : "";
    throw_user_error(
        "this run needs {} of memory{} and {} can be had; lower train.micro_batch or data.seq_len, set "
        "recompute.policy = \"full\", {}or take a smaller model. By category:\n{}",
        format_bytes(need.total()), ranks, format_bytes(available),
        world.size() > 1 && config.mesh.zero < 3 ? "raise mesh.zero, " : "", memory_table(need));
  }
  return plan.arenas;
}

}  // namespace meshtrain
