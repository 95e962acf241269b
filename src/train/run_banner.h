// The first lines of a run: what it trains, on what, and where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/memory.h"
#include "train/config.h"
#include "train/run_data.h"

namespace meshtrain {

struct RunFacts {
  const Config& config;  // as resolved, its mesh filled in
  const RunData& data;
  std::int64_t steps_done = 0;  // before this process
  std::int64_t position = 0;    // samples trained on before
  std::string engine;
  int threads = 1;         // of a rank
  std::int64_t bytes = 0;  // that rank 0 needs
  std::string peak;        // which MFU is a fraction of; empty: not known
};

// Label and value in two columns, a line each.
std::vector<std::string> run_banner(const RunFacts& facts);

}  // namespace meshtrain
