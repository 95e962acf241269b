// One bit that a process and those that it forks share.
#pragma once

#include <atomic>

namespace meshtrain {

class SharedFlag {
 public:
  SharedFlag();  // not set; throws std::bad_alloc
  ~SharedFlag();
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;

  void set() { flag_->store(true); }
  bool is_set() const { return flag_->load(); }

 private:
  std::atomic<bool>* flag_;
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace meshtrain
