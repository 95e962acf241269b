// How many cores a rank computes on.
#pragma once

#include <cstdint>

namespace meshtrain {

// `asked` > 0 as it is; 0: OMP_NUM_THREADS when set, else the cores that this process may run on.
int resolve_threads(std::int64_t asked);

}  // namespace meshtrain
