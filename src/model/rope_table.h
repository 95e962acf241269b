// Cosines and sines of rotary position embedding, with Llama-3's frequency scaling.
#pragma once

#include <vector>

#include "model/spec.h"

namespace meshtrain {

// Row-major [positions, head_dim]: per position head_dim/2 cosines, then head_dim/2 sines. Angles
// are computed in double and rounded once.
std::vector<float> rope_table(const ModelSpec& spec, std::int64_t positions);

}  // namespace meshtrain
