// Independent tasks of one operation, shared out among threads.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace meshtrain::ops::cpu {

// Calls body(task) once for every task in [0, count), started in ascending order on up to `threads`
// threads; returns when all are done. Which thread runs a task is not defined, so the tasks' results
// must not depend on it. The first exception is thrown again here.
// Inside the body oneDNN and OpenMP see a single thread.
template <class Body>
void for_each_task(int threads, std::int64_t count, const Body& body) {
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads) default(none) shared(count, body, failure)
  {
    // A variable of this implicit task alone: neither the caller nor another region sees it.
    omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t task = 0; task < count; ++task) {
      try {
        body(task);
      } catch (...) {
#pragma omp critical(meshtrain_task_failure)
        if (!failure) failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace meshtrain::ops::cpu
