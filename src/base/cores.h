// The processor cores that the program may use.
#pragma once

#include <vector>

namespace meshtrain {

// Those that this thread may run on, in ascending order; at least one.
std::vector<int> available_cores();

}  // namespace meshtrain
