#include "launch/restarts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "launch/failures.h"
#include "launch/supervisor_signals.h"
#include "telemetry/units.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

bool is_worth_a_restart(const RanksEnd& end) {
  if (end.user_signal) return false;
  const FailureKind kind = cause_of(end.failures).kind;
  return kind == FailureKind::kEnded || kind == FailureKind::kLostOthers;
}

// "rank 2 was lost, ", or nothing.
std::string lost_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  const bool one = ranks.size() == 1;
  return fmt::format("rank{} {} {} lost, ", one ? "" : "s", fmt::join(ranks, ", "), one ? "was" : "were");
}

std::string mesh_of(const Attempt& attempt) {
  return fmt::format("dp={} ({})", attempt.config.mesh.dp, format_count(ranks_of(attempt.config.mesh), "rank"));
}

// With what is left of the places, if that is enough.
std::optional<Attempt> with_places_left(const Attempt& attempt, std::size_t lost) {
  Attempt next = attempt;
  next.places -= static_cast<std::int64_t>(lost);
  const std::optional<Config> config = for_ranks_at_most(attempt.config, next.places);
  if (!config) return std::nullopt;
  next.config = *config;
  return next;
}

std::string why_no_smaller_mesh(const RanksEnd& end, const Attempt& attempt) {
  if (end.lost.empty()) return "no rank is gone for good";
  const MeshConfig& mesh = attempt.config.mesh;
  const std::int64_t left = attempt.places - static_cast<std::int64_t>(end.lost.size());
  return fmt::format("a copy of the model takes {} (tp={} x pp={}) and {} left",
                     format_count(mesh.tp * mesh.pp, "rank"), mesh.tp, mesh.pp,
                     left == 1 ? "1 is" : fmt::format("{} are", left));
}

std::string sentence(std::string text) {
  if (!text.ends_with('.')) text += '.';
  return text;
}

[[noreturn]] void throw_end(const RanksEnd& end, const Attempt& attempt, const std::string& why) {
  if (end.ended_by != 0) end_by(end.ended_by);
  const int ranks = static_cast<int>(ranks_of(attempt.config.mesh));
  const std::string message = message_of_cause(end.failures, ranks);
  if (!why.empty()) throw RunError(sentence(message) + " " + why);
  const bool begun = attempt.restarts > 0;
  if (begun && cause_of(end.failures).kind == FailureKind::kUser) throw RunError(message);
  throw_cause(end.failures, ranks);
}

}  // namespace

NextAttempt next_attempt(const RanksEnd& end, const Attempt& attempt, const RestartPolicy& policy) {
  if (!is_worth_a_restart(end)) return {};
  if (policy.most && attempt.restarts >= *policy.most) {
    return {{},
            fmt::format("--max-restarts {}: the run was restarted {}", *policy.most,
                        format_count(attempt.restarts, "time"))};
  }
  const std::string lost = lost_ranks(end.lost);
  Attempt same = attempt;
  ++same.restarts;
  if (!policy.elastic) return {same, fmt::format("{}continuing with {} as before", lost, mesh_of(same))};
  if (!end.lost.empty()) {
    if (const std::optional<Attempt> next = with_places_left(same, end.lost.size())) {
      const std::int64_t before = attempt.config.mesh.dp;
      const std::string change = next->config.mesh.dp == before ? "as before, in a place that was free"
                                                                : fmt::format("instead of dp={}", before);
      return {next, fmt::format("{}continuing with dp={} {} ({})", lost, next->config.mesh.dp, change,
                                format_count(ranks_of(next->config.mesh), "rank"))};
    }
  }
  const std::string why = why_no_smaller_mesh(end, attempt);
  if (policy.most) {
    return {same,
            fmt::format("{}continuing with {} as before; the mesh cannot shrink: {}", lost, mesh_of(same), why)};
  }
  return {{},
          fmt::format("--elastic: the mesh cannot shrink: {}; --max-restarts N would start it again as it is",
                      why)};
}

void check_restartable(const RestartPolicy& policy, RanksAs ranks_as, const std::string& engine) {
  if (!policy.asked()) return;
  const std::string option = policy.most ? fmt::format("--max-restarts {}", *policy.most) : "--elastic";
  if (const std::optional<WorkerEnvironment> environment = launcher_of_ranks(engine, std::nullopt)) {
    const std::string& launcher = environment->launcher;
    throw_user_error(
        "{}: {} started the ranks of this run, so that to start them again is its work and not this program's. "
        "Leave {} out, train with --resume, and {}.",
        option, launcher, option,
        launcher == "torchrun" ? "use torchrun's own --max-restarts"
        : launcher == "srun"   ? "let Slurm start the job again (sbatch --requeue)"
                               : "start " + launcher + " again when it fails");
  }
  if (ranks_as == RanksAs::kThreads) {
    throw_user_error(
        "{} with --ranks-as threads: threads of one process are lost together, so nobody is left to start them "
        "again. Leave --ranks-as out.",
        option);
  }
}

void run_restarting(const Config& config, const RestartPolicy& policy, const RestartableRun& run) {
  Attempt attempt{.config = config, .places = ranks_of(config.mesh)};
  for (;;) {
    const int ranks = static_cast<int>(ranks_of(attempt.config.mesh));
    const RanksEnd end =
        watch_process_ranks({.ranks = ranks, .world = world_options(attempt.config)},
                            [&](World& world, int threads) { run.body(attempt, world, threads); });
    if (end.failures.empty()) return;
    NextAttempt next = next_attempt(end, attempt, policy);
    if (!next.attempt) throw_end(end, attempt, next.said);
    notice("{} Restart {}{} from {}: {}", sentence(message_of_cause(end.failures, ranks)),
           next.attempt->restarts, policy.most ? fmt::format(" of {}", *policy.most) : "", run.get_ready(),
           next.said);
    attempt = *std::move(next.attempt);
  }
}

}  // namespace meshtrain
