// The last words of a run: what it came to, and what to do next.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "train/checkpointing.h"
#include "train/config.h"

namespace meshtrain {

struct RunEnd {
  const Config& config;
  RunPosition start;  // of this process
  RunPosition place;
  bool evaluation_owed = false;      // the last step is done, the evaluation after it is not
  std::optional<double> loss_scale;  // fp16
  std::optional<double> loss;        // of the last step of this process
};

// `checkpoint`: the newest; empty where nothing was saved.
std::string last_line(const RunEnd& end, const std::string& checkpoint);

// Throws AgreedError, on every rank alike, where a run is over and every step of this process was skipped.
void check_something_was_trained(const RunEnd& end);

// The message of a run that failed, with what the user can do next. Once all ranks of this process have ended.
std::string with_advice(std::string_view failure, const Config& config);

}  // namespace meshtrain
