// How many cores a rank computes on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace meshtrain {

// The first number of OMP_NUM_THREADS, which may be a list for nested loops; empty for an empty value. Throws
// UserError for any other.
std::optional<int> parse_omp_num_threads(std::string_view value);

// OMP_NUM_THREADS of this process when it is set, else `cores`.
int threads_by_default(int cores);

// `asked` > 0 as it is; 0: OMP_NUM_THREADS when set, else the cores that this thread may run on.
int resolve_threads(std::int64_t asked);

}  // namespace meshtrain
