#include "plan/checkpoint_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text_table.h"
#include "base/text_wrap.h"
#include "checkpoint/interval.h"
#include "comm/engines.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "telemetry/units.h"
#include "train/assembly.h"
#include "train/checkpoint_rhythm.h"
#include "train/checkpointing.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

// fp32 values kept of a parameter: its master and its optimizer's states.
std::int64_t values_of_parameter(const Config& config) {
  // The rest of the settings adds no state.
  const auto rule = make_optimizer({.name = config.optimizer.name, .momentum = config.optimizer.momentum});
  return 1 + static_cast<std::int64_t>(rule->state_names().size());
}

std::int64_t bytes_of_parameter(const Config& config) {
  return values_of_parameter(config) * size_of(DType::kF32);
}

std::string row(std::string_view name, const std::string& value, const std::string& note) {
  return hanging_line(fmt::format("{:<26} {:>11}", name, value), note, 41);
}

std::string assumption(const std::string& what, const Assumed& assumed) {
  const std::string name = fmt::format("  {}: ", what);
  return assumed.source.empty() ? "" : hanging_line(name, assumed.source, name.size());
}

// Above all of it the formula says no more than that.
std::string percent(double waste) {
  return waste < 1.0 ? fmt::format("{:.3g} %", 100.0 * waste) : "over 100 %";
}

double lag(const CheckpointPlan& plan) {
  return plan.write_seconds - plan.stall_seconds;
}

// What the config asks for.
std::string configured(const CheckpointPlan& plan, const Config& config) {
  const std::int64_t every = config.checkpoint.every;
  if (every == 0)
    return row("checkpoint.every = 0", "", "saves only at the end: a failure loses all before it");
  const bool is_auto = every == CheckpointConfig::kAuto;
  const double step = plan.assumed.step_seconds.value;
  const std::int64_t steps =
      is_auto
          ? steps_in(auto_interval(config, {.stall = plan.stall_seconds, .writing = plan.write_seconds}), step)
          : every;
  const double interval = static_cast<double>(steps) * step;
  std::string text = row(
      fmt::format("checkpoint.every = {}", is_auto ? "\"auto\"" : std::to_string(every)),
      format_duration(interval),
      fmt::format("{}: wastes {}, a failure loses {}", format_count(steps, "step"),
                  percent(waste_of_steps(plan, steps)), format_duration(lost_by_failure(interval, lag(plan)))));
  const double believed = seconds_between_failures(config);
  if (is_auto && believed != plan.assumed.seconds_between_failures.value) {
    text +=
        fmt::format("  a run goes by checkpoint.mtbf_hours{}: a failure every {}\n",
                    config.checkpoint.mtbf_hours > 0.0 ? "" : ", which is not set", format_duration(believed));
  }
  return text;
}

// What sets the interval.
std::string reason(const CheckpointPlan& plan) {
  const double young = young_interval(plan.stall_seconds, plan.assumed.seconds_between_failures.value);
  if (plan.interval_seconds <= young) return "which wastes least (Young 1974)";
  if (plan.interval_seconds > plan.assumed.step_seconds.value) return "as fast as they are written";
  return fmt::format("which takes longer than Young's {}", format_duration(young));
}

}  // namespace

CheckpointSize checkpoint_size(const Config& config) {
  CheckpointSize size = {.all = parameter_count(config.model) * bytes_of_parameter(config)};
  for (std::int64_t stage = 0; stage < config.mesh.pp; ++stage) {
    // Of a stage the first rank writes most: what tensor-parallel ranks all hold, and no padding.
    const auto rank = static_cast<int>(rank_at(config.mesh, 0, 0, stage));
    const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
    const std::unique_ptr<Device> device = world->make_device();
    const std::int64_t share = checkpoint_contents(Assembly(config, *device, *world, std::nullopt), {}).bytes();
    if (share > size.of_rank) {
      size.of_rank = share;
      size.stage = stage;
    }
  }
  return size;
}

CheckpointPlan plan_checkpoints(const Config& config, const CheckpointAssumptions& assumed) {
  CheckpointPlan plan = {.size = checkpoint_size(config), .assumed = assumed};
  plan.write_seconds = static_cast<double>(plan.size.all) / assumed.write_bytes_per_second.value;
  plan.stall_seconds = plan.write_seconds;
  if (config.checkpoint.async) {
    check(assumed.copy_bytes_per_second.value > 0.0, "a copy of unknown speed");
    // The file is written from the copy.
    plan.stall_seconds = static_cast<double>(plan.size.of_rank) / assumed.copy_bytes_per_second.value;
    plan.write_seconds += plan.stall_seconds;
  }
  const double apart = assumed.seconds_between_failures.value;
  plan.interval_seconds = young_interval(plan.stall_seconds, apart);
  if (config.checkpoint.async) plan.interval_seconds = std::max(plan.interval_seconds, plan.write_seconds);
  plan.interval_seconds = std::max(plan.interval_seconds, assumed.step_seconds.value);
  plan.interval_steps = steps_in(plan.interval_seconds, assumed.step_seconds.value);
  plan.waste = waste_of_interval(plan.interval_seconds, plan.stall_seconds, lag(plan), apart);
  plan.lost_seconds = lost_by_failure(plan.interval_seconds, lag(plan));
  return plan;
}

double waste_of_steps(const CheckpointPlan& plan, std::int64_t steps) {
  return waste_of_interval(static_cast<double>(steps) * plan.assumed.step_seconds.value, plan.stall_seconds,
                           lag(plan), plan.assumed.seconds_between_failures.value);
}

nlohmann::json to_json(const CheckpointPlan& plan, const Config& config) {
  const auto assumed = [](const Assumed& figure) -> nlohmann::json {
    if (figure.source.empty()) return nullptr;
    return {{"value", figure.value}, {"source", figure.source}};
  };
  const CheckpointConfig& saves = config.checkpoint;
  nlohmann::json json = {
      {"bytes", plan.size.all},
      {"bytes_of_rank", plan.size.of_rank},
      {"stage_of_rank", plan.size.stage},
      {"write_bytes_per_second", assumed(plan.assumed.write_bytes_per_second)},
      {"copy_bytes_per_second", assumed(plan.assumed.copy_bytes_per_second)},
      {"seconds_between_failures", assumed(plan.assumed.seconds_between_failures)},
      {"step_seconds", assumed(plan.assumed.step_seconds)},
      {"async", saves.async},
      {"write_seconds", plan.write_seconds},
      {"stall_seconds", plan.stall_seconds},
      {"interval_seconds", plan.interval_seconds},
      {"interval_steps", plan.interval_steps},
      {"waste", plan.waste},
      {"lost_seconds", plan.lost_seconds},
  };
  if (saves.every > 0)
    json["configured"] = {{"steps", saves.every}, {"waste", waste_of_steps(plan, saves.every)}};
  return json;
}

std::string to_text(const CheckpointPlan& plan, const Config& config) {
  const CheckpointAssumptions& assumed = plan.assumed;
  const MeshConfig& mesh = config.mesh;
  std::string text = "checkpoints\n";
  text +=
      row("size", format_bytes(plan.size.all),
          fmt::format("{} fp32 values of a parameter; headers are a little more", values_of_parameter(config)));
  if (mesh.dp * mesh.tp * mesh.pp > 1) {
    text += row("most of a rank", format_bytes(plan.size.of_rank),
                mesh.pp > 1 ? fmt::format("a rank of stage {}", plan.size.stage) : "");
  }
  if (config.checkpoint.keep > 0) {
    text += row("on disk", format_bytes((config.checkpoint.keep + 1) * plan.size.all),
                fmt::format("checkpoint.keep = {}, and the one being written", config.checkpoint.keep));
  }
  text += row("written in", format_duration(plan.write_seconds),
              "at " + format_rate(assumed.write_bytes_per_second.value));
  text += row("training stands still", format_duration(plan.stall_seconds),
              config.checkpoint.async
                  ? fmt::format("while it is copied at {}", format_rate(assumed.copy_bytes_per_second.value))
                  : "all the time: checkpoint.async = false");
  text += row("a failure every", format_duration(assumed.seconds_between_failures.value), "");
  text += row("save every", format_duration(plan.interval_seconds),
              fmt::format("{} of {}, {}", format_count(plan.interval_steps, "step"),
                          format_duration(assumed.step_seconds.value), reason(plan)));
  text += row("waste", percent(plan.waste), "of all time: saves, and work done again");
  text += row("a failure loses", format_duration(plan.lost_seconds),
              "of work, on average; restarting comes on top");
  text += configured(plan, config);
  text += "assumed\n";
  text += assumption("writing", assumed.write_bytes_per_second);
  text += assumption("copying", assumed.copy_bytes_per_second);
  text += assumption("failures", assumed.seconds_between_failures);
  text += assumption("a step", assumed.step_seconds);
  constexpr double kSmall = 0.05;
  if (plan.waste >= 1.0) {
    text += "Failures come too often for steps and saves that take so long: such a run gets nowhere.\n";
  } else if (plan.stall_seconds > kSmall * assumed.seconds_between_failures.value) {
    text += fmt::format(
        "A save takes {:.2g} of the time between failures: the formula, which is for small parts, is rough "
        "here.\n",
        plan.stall_seconds / assumed.seconds_between_failures.value);
  }
  return wrap(text, TextTable::kWidth);
}

}  // namespace meshtrain
