#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace meshtrain {

// Of an even number of values, the mean of the middle two; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace meshtrain
