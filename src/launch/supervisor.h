// Ranks as processes: forked, watched and ended together.
#pragma once

#include "launch/launch.h"

namespace meshtrain {

// See run_local_ranks; two ranks or more. All processes are gone when it returns or throws. When one fails, the
// others have two seconds to notice and leave; then they get SIGTERM, two seconds later SIGKILL.
void run_process_ranks(const LaunchOptions& options, const RankBody& body);

}  // namespace meshtrain
