// Ranks as processes: forked, watched and ended together.
#pragma once

#include <vector>

#include "launch/failures.h"
#include "launch/launch.h"

namespace meshtrain {

// How the ranks of a supervisor ended.
struct RanksEnd {
  std::vector<RankFailure> failures;  // in the order in which they happened; empty: all ranks have succeeded
  // Ranks that went without a word, ascending: killed by a signal that did not come from the user, left with
  // exit(), or held by SIGSTOP; where others missed a rank and it is none of these, those that did not leave
  // when they were told to.
  std::vector<int> lost;
  bool user_signal = false;  // the user sent SIGINT, SIGTERM or SIGUSR1
  int ended_by = 0;          // the one of these that ended the ranks, if one did
};

// Forks the ranks, one or more, and watches them. All processes are gone when it returns or throws. When one
// fails, the others have two seconds to notice and leave; then they get SIGTERM, two seconds later SIGKILL.
// Those that are stopped (SIGSTOP) cannot leave, and get SIGKILL at once; one that stays so for the deadline
// and two seconds, while nobody misses it, is a failure itself. Throws UserError when the system
// refuses processes or memory.
RanksEnd watch_process_ranks(const LaunchOptions& options, const RankBody& body);

// The same, for who cares only that they succeed: see run_local_ranks.
void run_process_ranks(const LaunchOptions& options, const RankBody& body);

}  // namespace meshtrain
