#include "launch/restarts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "launch/failures.h"
#include "launch/supervisor_signals.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

bool is_worth_a_restart(const RanksEnd& end) {
  if (end.user_signal) return false;
  const FailureKind kind = cause_of(end.failures).kind;
  return kind == FailureKind::kEnded || kind == FailureKind::kLostOthers;
}

std::string count_of(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string names_of_lost(const std::vector<int>& ranks) {
  return fmt::format("rank{} {} {} lost", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     ranks.size() == 1 ? "was" : "were");
}

std::string same_mesh(const Attempt& attempt) {
  return fmt::format("on the same mesh (dp={}, {})", attempt.config.mesh.dp,
                     count_of(ranks_of(attempt.config.mesh), "rank"));
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
                     count_of(mesh.tp * mesh.pp, "rank"), mesh.tp, mesh.pp,
                     left == 1 ? "1 is" : fmt::format("{} are", left));
}

std::string sentence(std::string text) {
  if (!text.ends_with('.')) text += '.';
  return text;
}

[[noreturn]] void throw_end(const RanksEnd& end, const Attempt& attempt, const std::string& why) {
  if (end.ended_by != 0) end_by(end.ended_by);
  const int ranks = static_cast<int>(ranks_of(attempt.config.mesh));
  if (why.empty() && attempt.restarts == 0) throw_cause(end.failures, ranks);
  const std::string message = message_of_cause(end.failures, ranks);
  if (why.empty() && cause_of(end.failures).kind == FailureKind::kUnexpected) throw_cause(end.failures, ranks);
  throw RunError(why.empty() ? message : sentence(message) + " " + why);
}

}  // namespace

NextAttempt next_attempt(const RanksEnd& end, const Attempt& attempt, const RestartPolicy& policy) {
  if (!is_worth_a_restart(end)) return {};
  if (policy.most && attempt.restarts >= *policy.most) {
    return {{},
            fmt::format(
                "--max-restarts {}: {} made", *policy.most,
                attempt.restarts == 1 ? "1 restart was" : fmt::format("{} restarts were", attempt.restarts))};
  }
  std::string said = end.lost.empty() ? "" : names_of_lost(end.lost) + ": ";
  Attempt same = attempt;
  ++same.restarts;
  if (!policy.elastic) return {same, said + "going on " + same_mesh(same)};
  if (!end.lost.empty()) {
    if (std::optional<Attempt> smaller = with_places_left(same, end.lost.size())) {
      const std::int64_t dp = smaller->config.mesh.dp;
      said += dp == attempt.config.mesh.dp
                  ? "going on " + same_mesh(*smaller) + ", whose places are enough"
                  : fmt::format("going on with dp={} instead of dp={} ({})", dp, attempt.config.mesh.dp,
                                count_of(ranks_of(smaller->config.mesh), "rank"));
      return {std::move(smaller), said};
    }
  }
  const std::string why = why_no_smaller_mesh(end, attempt);
  if (policy.most)
    return {same, fmt::format("{}going on {}, which cannot shrink: {}", said, same_mesh(same), why)};
  return {{},
          fmt::format("--elastic: the mesh cannot shrink: {}; --max-restarts N would start it on the same one",
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
