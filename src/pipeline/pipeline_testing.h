// Shapes that the tests of schedules and timelines go through.
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace meshtrain {

inline std::string to_string(const PipelineShape& shape) {
  return "p=" + std::to_string(shape.stages) + " v=" + std::to_string(shape.chunks) +
         " m=" + std::to_string(shape.micro_batches);
}

// p ≤ 8, m ≤ 16, and v ≤ 4 where the schedule takes chunks.
template <class Function>
void for_each_shape(const PipelineSchedule& schedule, Function function) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int chunks = 1; chunks <= (schedule.takes_chunks ? 4 : 1); ++chunks) {
      for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
        function(PipelineShape{stages, chunks, micro_batches});
      }
    }
  }
}

// "F0 F1 B0 B1".
inline std::string text_of(const std::vector<PipelineAction>& order, int chunks) {
  std::string text;
  for (const PipelineAction& action : order) text += (text.empty() ? "" : " ") + to_string(action, chunks);
  return text;
}

}  // namespace meshtrain
