#include "base/shared_flag.h"

#include <sys/mman.h>

#include <new>

namespace meshtrain {

SharedFlag::SharedFlag() {
  void* const memory =
      mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  flag_ = new (memory) std::atomic<bool>(false);
}

SharedFlag::~SharedFlag() {
  munmap(flag_, sizeof(std::atomic<bool>));
}

}  // namespace meshtrain
