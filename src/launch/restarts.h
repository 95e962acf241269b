// Runs that are started again when a rank is lost: `train --max-restarts N` and `--elastic`.
//
// Lost is what RanksEnd::lost says, and all ranks that missed another until the deadline, if that is all there
// is. Anything else ends the run: a rank that gave a reason (disk full, loss not finite) would give it again,
// and a signal of the user is obeyed, also where a rank is lost after it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/world.h"
#include "launch/launch.h"
#include "launch/supervisor.h"
#include "train/config.h"

namespace meshtrain {

struct RestartPolicy {
  std::optional<std::int64_t> most = {};  // --max-restarts
  // The places of lost ranks are gone: the next attempt has the largest mesh.dp that those left allow. Where
  // none is possible, or none was lost for good, it has the same mesh if `most` was given, else the run ends.
  bool elastic = false;

  bool asked() const { return most || elastic; }
};

struct Attempt {
  Config config;            // its mesh filled in
  std::int64_t places = 0;  // where ranks may run; more than the mesh has where its sizes do not come out even
  std::int64_t restarts = 0;  // made before
};

struct NextAttempt {
  std::optional<Attempt> attempt;  // nothing: the run ends
  // Of an attempt: what was lost and on which mesh it goes on. Of an end: why restarts did not help; empty
  // where they were not to.
  std::string said;
};

// What follows an attempt that failed.
NextAttempt next_attempt(const RanksEnd& end, const Attempt& attempt, const RestartPolicy& policy);

struct RestartableRun {
  // What each rank of an attempt does.
  std::function<void(const Attempt& attempt, World& world, int threads)> body;
  // Called in this process before every restart; returns where it goes on, for the user: "step 1".
  std::function<std::string()> get_ready;
};

// Throws UserError where ranks are not processes of a supervisor of ours: `ranks_as` threads, or started by
// another launcher, whose work restarts then are. `engine`: mesh.engine.
void check_restartable(const RestartPolicy& policy, RanksAs ranks_as, const std::string& engine);

// Runs `body` on all ranks of the config, whose mesh must be filled in, each a process, also a single one. All
// processes of an attempt are gone before the next starts, which is said in a line on standard error. Ends as
// run_process_ranks does; after a restart, a UserError of a rank is a RunError.
void run_restarting(const Config& config, const RestartPolicy& policy, const RestartableRun& run);

}  // namespace meshtrain
