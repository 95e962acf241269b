#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>
#include <numeric>
#include <thread>

namespace meshtrain {

std::vector<int> available_cores() {
  // The kernel refuses a mask that is shorter than its own.
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const std::size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, mask.data()) == 0) {
      std::vector<int> cores;
      for (int core = 0; core < static_cast<int>(8 * bytes); ++core) {
        if (CPU_ISSET_S(core, bytes, mask.data())) cores.push_back(core);
      }
      return cores;
    }
    if (errno != EINVAL) break;
  }
  std::vector<int> cores(std::max(1u, std::thread::hardware_concurrency()));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

void bind_to_cores(std::span<const int> cores) {
  const int highest = *std::max_element(cores.begin(), cores.end());
  cpu_set_t* const mask = CPU_ALLOC(highest + 1);
  if (mask == nullptr) throw std::bad_alloc();
  const std::size_t bytes = CPU_ALLOC_SIZE(highest + 1);
  CPU_ZERO_S(bytes, mask);
  for (const int core : cores) CPU_SET_S(core, bytes, mask);
  sched_setaffinity(0, bytes, mask);
  CPU_FREE(mask);
}

}  // namespace meshtrain
