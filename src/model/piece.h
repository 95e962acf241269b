// A run of a model's layers that one pipeline stage computes.
#pragma once

#include <cstdint>

namespace meshtrain {

struct ModelPiece {
  std::int64_t first_block = 0;
  std::int64_t blocks = 0;
  bool embedding = true;  // before the first block
  bool head = true;       // after the last: final norm, projection, loss
  friend bool operator==(const ModelPiece&, const ModelPiece&) = default;
};

}  // namespace meshtrain
