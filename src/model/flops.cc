#include "model/flops.h"

namespace meshtrain {

LayerFlops layer_flops_per_token(const ModelSpec& spec, std::int64_t seq_len) {
  const std::int64_t q = spec.heads * spec.head_dim;
  const std::int64_t kv = spec.kv_heads * spec.head_dim;
  const std::int64_t attention = spec.hidden * (q + 2 * kv) + q * spec.hidden;
  const std::int64_t feed_forward = (spec.arch == Architecture::kLlama ? 3 : 2) * spec.hidden * spec.ffn_hidden;
  return {.block = 6 * (attention + feed_forward + q * seq_len), .head = 6 * spec.vocab * spec.hidden};
}

std::int64_t model_flops_per_token(const ModelSpec& spec, std::int64_t seq_len) {
  const LayerFlops layer = layer_flops_per_token(spec, seq_len);
  return spec.layers * layer.block + layer.head;
}

}  // namespace meshtrain
