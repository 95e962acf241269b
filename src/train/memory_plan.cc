#include "train/memory_plan.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "comm/engines.h"
#include "telemetry/units.h"
#include "train/stages.h"
#include "train/step.h"

namespace meshtrain {
namespace {

// How many micro-batches of a step show what it needs. More only repeat themselves: these are warm-up, some
// rounds and the end of every schedule, and more than are alive at once in all but gpipe. But where units come
// and go (ZeRO 2 and 3), first fit puts them where those of the micro-batch before have left room, and they
// return to the same places after several: a longer step ends as one does with the same remainder of a number
// of micro-batches that all short periods divide.
std::int64_t micro_steps_that_show_all(const Config& config) {
  constexpr std::int64_t kPeriods = 840;  // of 1 to 8
  const std::int64_t all = pipeline_of(config).micro_batches;
  const std::int64_t few = 4 * config.mesh.pp * config.mesh.virtual_stages + 2;
  if (all <= few) return all;
  return config.mesh.zero < 2 ? few : few + (all - few) % kPeriods;
}

}  // namespace

ArenaSizes measure_arenas(const Config& config, int rank) {
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  Config shorter = config;
  const std::int64_t micro_steps = micro_steps_that_show_all(config);
  shorter.train.global_batch = micro_steps * config.train.micro_batch * config.mesh.dp;
  Assembly assembly(shorter, *device, *world, std::nullopt);
  const auto tokens = static_cast<std::size_t>(assembly.micro_batch_shape().tokens() * micro_steps);
  const std::vector<std::int32_t> zeros(tokens, 0);
  train_step(assembly, {.tokens = zeros, .targets = zeros}, 0.0, 1);
  eval_step(assembly, {.tokens = zeros, .targets = zeros});
  return assembly.arena_peaks();
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
