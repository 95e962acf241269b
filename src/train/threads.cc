#include "train/threads.h"

#include <omp.h>

namespace meshtrain {

int resolve_threads(std::int64_t asked) {
  return asked > 0 ? static_cast<int>(asked) : omp_get_max_threads();
}

}  // namespace meshtrain
