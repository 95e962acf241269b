// Going back to the newest checkpoint because of a bad step.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"
#include "train/assembly.h"
#include "train/bad_steps.h"
#include "train/checkpointing.h"
#include "train/run_output.h"

namespace meshtrain {

// The state from which a run without a checkpoint of its own goes on: that of `checkpoint`, or, where there is
// none, initial weights. A collective call. Throws UserError.
RunPosition load_start(Assembly& assembly, const Checkpoint* checkpoint);

// After the step behind `place`, whose update was not applied, turned out bad: waits for the save in flight,
// restores the newest whole checkpoint of this run (without one, what it started from), and leaves the data of
// the bad step out, so that the steps in between are done again as before and the bad one with the samples that
// follow. `output` of the rank that leads, which notes it in the run folder and says it; null on the others.
// Returns where the run now stands. A collective call; throws RunError.
RunPosition roll_back(Assembly& assembly, CheckpointWriter& writer, RunOutput* output, const RunPosition& place,
                      const BadStep& bad);

}  // namespace meshtrain
