// The processor cores that the program may use.
#pragma once

#include <span>
#include <vector>

namespace meshtrain {

// Those that this thread may run on, in ascending order; at least one.
std::vector<int> available_cores();

// Binds this thread, and the threads that it will start, to these cores; there is one at least. Where the
// system forbids it nothing changes.
void bind_to_cores(std::span<const int> cores);

// The same until the end of its life, which is on the same thread.
class BoundToCores {
 public:
  explicit BoundToCores(std::span<const int> cores) : before_(available_cores()) { bind_to_cores(cores); }
  ~BoundToCores() { bind_to_cores(before_); }
  BoundToCores(const BoundToCores&) = delete;
  BoundToCores& operator=(const BoundToCores&) = delete;

 private:
  std::vector<int> before_;
};

}  // namespace meshtrain
