// Ranks as threads of this process.
#pragma once

#include "launch/launch.h"

namespace meshtrain {

// See run_local_ranks; two ranks or more. All threads have ended when it returns or throws.
void run_thread_ranks(const LaunchOptions& options, const RankBody& body);

}  // namespace meshtrain
