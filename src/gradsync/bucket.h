// Units whose gradients are ready, until there are enough of them to reduce.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "params/param_store.h"

namespace meshtrain::gradsync {

class Bucket {
 public:
  Bucket(const ParamStore& store, std::int64_t bytes) : store_(store), limit_(bytes) {}

  // Whether the unit lies beside those in it in the flat layout; true where it is empty.
  bool is_neighbour(int unit) const {
    if (units_.empty()) return true;
    const auto [first, last] = std::minmax_element(units_.begin(), units_.end());
    return unit == *first - 1 || unit == *last + 1;
  }
  // Whether it is full then.
  bool add(int unit) {
    units_.push_back(unit);
    bytes_ += store_.unit_gradients(unit).bytes();
    return bytes_ >= limit_;
  }
  bool empty() const { return units_.empty(); }
  // What it holds, in the order in which it came; it is empty then.
  std::vector<int> take() {
    bytes_ = 0;
    return std::exchange(units_, {});
  }

 private:
  const ParamStore& store_;
  std::int64_t limit_;
  std::int64_t bytes_ = 0;
  std::vector<int> units_;
};

}  // namespace meshtrain::gradsync
