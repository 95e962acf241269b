#include "cli/plan_checkpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "base/error.h"
#include "checkpoint/disk_speed.h"
#include "checkpoint/interval.h"
#include "plan/plan_trace.h"
#include "telemetry/units.h"
#include "train/checkpoint_rhythm.h"
#include "train/mesh.h"

namespace meshtrain::cli {
namespace {

// Products of a few of them stay far from the end of a double.
CLI::Validator positive_number() {
  const auto check_value = [](const std::string& text) -> std::string {
    constexpr double kMost = 1e12;
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value > 0.0 && value <= kMost) return "";
    return fmt::format("\"{}\" is not a number above 0, up to {:g}", text, kMost);
  };
  return CLI::Validator(check_value, "");
}

Assumed write_speed(const Config& config, const CheckpointArguments& arguments) {
  if (arguments.write_gbps > 0.0) return {arguments.write_gbps * 1e9, "given, of all ranks together"};
  DiskSpeed disk;
  try {
    disk = measure_disk(config.checkpoint.dir);
  } catch (const RunError& error) {
    throw_run_error("{}; set checkpoint.dir, or give the speed with --write-gbps", error.what());
  }
  return {
      disk.bytes_per_second(),
      fmt::format("measured: one process of this machine writes {} in {} and syncs it; --write-gbps gives that "
                  "of all ranks together",
                  format_bytes(disk.bytes), disk.folder)};
}

Assumed failures(const Config& config, const CheckpointArguments& arguments) {
  if (arguments.mtbf_hours > 0.0) return {arguments.mtbf_hours * 3600.0, "given by --mtbf"};
  const bool of_config = config.checkpoint.mtbf_hours > 0.0 && arguments.device_hours == 0.0;
  if (of_config) return {seconds_between_failures(config), "checkpoint.mtbf_hours"};
  const std::int64_t ranks = ranks_of(config.mesh);
  const bool given = arguments.device_hours > 0.0;
  const double hours = given ? arguments.device_hours : kDeviceHoursPerFailure;
  return {seconds_between_failures(hours, ranks),
          fmt::format("one in {:g} device-hours{}, {} rank{}", hours, given ? "" : " (nothing was said)", ranks,
                      ranks > 1 ? "s" : "")};
}

Assumed step_time(const Config& config, const CheckpointArguments& arguments) {
  if (arguments.step_seconds > 0.0) return {arguments.step_seconds, "given"};
  const TraceRates rates = trace_rates(config);
  return {modelled_step_seconds(config, rates),
          fmt::format("modelled at {}; --step-seconds gives the true one", to_string(rates, config))};
}

}  // namespace

CLI::Option* add_checkpoint_arguments(CLI::App& command, CheckpointArguments& arguments) {
  CLI::Option* asked =
      command.add_flag("--checkpoint", arguments.asked,
                       "Also print what checkpoints cost: size, time, how often to save, what a failure loses");
  const auto add = [&](const char* name, double& value, const char* type, const char* meaning) {
    return command.add_option(name, value, meaning)->type_name(type)->check(positive_number())->needs(asked);
  };
  add("--write-gbps", arguments.write_gbps, "GB/S",
      "Speed at which all ranks together write, in 1e9 bytes/s; default: measured in checkpoint.dir");
  CLI::Option* mtbf =
      add("--mtbf", arguments.mtbf_hours, "HOURS", "Mean time between failures of the whole run");
  add("--device-hours-per-failure", arguments.device_hours, "HOURS",
      "Mean time between failures of one rank. Without this and --mtbf: checkpoint.mtbf_hours, or else 50000 "
      "hours of each rank")
      ->excludes(mtbf);
  add("--step-seconds", arguments.step_seconds, "SECONDS",
      "Duration of a step; default: modelled as for --trace");
  return asked;
}

CheckpointPlan plan_checkpoints(const Config& config, const CheckpointArguments& arguments) {
  CheckpointAssumptions assumed;
  assumed.write_bytes_per_second = write_speed(config, arguments);
  assumed.seconds_between_failures = failures(config, arguments);
  assumed.step_seconds = step_time(config, arguments);
  if (config.checkpoint.async) {
    assumed.copy_bytes_per_second = {measure_memory_copy(), "measured: one thread of this machine"};
  }
  return meshtrain::plan_checkpoints(config, assumed);
}

}  // namespace meshtrain::cli
