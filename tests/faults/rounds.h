// The rounds: every fault at every phase where it makes sense.
#pragma once

#include <vector>

#include "faults/round.h"

namespace meshtrain::faults {

// Some of each, in seconds.
std::vector<Round> some_rounds();
// More than two hundred faults.
std::vector<Round> all_rounds();

}  // namespace meshtrain::faults
