// The FLOPs that MFU counts.
#pragma once

#include <cstdint>

#include "model/spec.h"

namespace meshtrain {

// Forward and backward FLOPs a token: 6 for each weight that is multiplied (matrices of the blocks and
// of the head; not lookups, norms and biases) and 6·layers·heads·head_dim·seq for causal attention, half of
// the full square. Recompute is not counted. (Narayanan et al. 2021, appendix; Chowdhery et al. 2022,
// appendix B, who count the full square.)
struct LayerFlops {
  std::int64_t block = 0;  // one of them
  std::int64_t head = 0;
};
LayerFlops layer_flops_per_token(const ModelSpec& spec, std::int64_t seq_len);
// Of the whole model: layers · block + head.
std::int64_t model_flops_per_token(const ModelSpec& spec, std::int64_t seq_len);

// How every MFU printed by meshtrain names this convention.
inline constexpr const char* kFlopConvention = "6*N + 6*L*H*S a token, causal attention, without recompute";

}  // namespace meshtrain
