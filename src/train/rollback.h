// Going back to the newest checkpoint because of a bad step.
#pragma once

#include <cstdint>
#include <string>

#include "train/assembly.h"
#include "train/bad_steps.h"
#include "train/checkpointing.h"
#include "train/run_output.h"

namespace meshtrain {

// After the step behind `place`, whose update was not applied, turned out bad: restores the newest whole
// checkpoint of this run, else the checkpoint `started_from`, else (empty) the initial weights; and leaves the
// data of the bad step out, so that the steps in between are done again as before and the bad one with the
// samples that follow. Every save must be committed. `output` of the rank that leads, which notes it in the run
// folder and says it; null on the others. Returns where the run now stands. A collective call; throws RunError.
RunPosition roll_back(Assembly& assembly, RunOutput* output, const RunPosition& place, const BadStep& bad,
                      const std::string& started_from);

}  // namespace meshtrain
