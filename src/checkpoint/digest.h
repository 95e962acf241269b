// What a checkpoint holds, as a few lines of text that do not depend on the mesh that wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace meshtrain {

struct TensorDigest {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::string hash;  // XXH3-64 of the whole tensor's bytes in row-major order
};

struct CheckpointDigest {
  std::vector<TensorDigest> tensors;  // by name
  std::string state;                  // of the run: step, updates, position, loss scale, as compact JSON
  std::string total;                  // XXH3-64 of to_lines() without the last line
};

// Reads every tensor, a few megabytes at a time. Throws UserError where one cannot be read; damaged values are
// not noticed here but by Checkpoint::verify().
CheckpointDigest digest_of(const Checkpoint& checkpoint);

// "NAME DTYPE SHAPE HASH" of each tensor, "state JSON HASH", "total HASH".
std::vector<std::string> to_lines(const CheckpointDigest& digest);

}  // namespace meshtrain
