#include "model/flops.h"

namespace meshtrain {

std::int64_t model_flops_per_token(const ModelSpec& spec, std::int64_t seq_len) {
  const std::int64_t q = spec.heads * spec.head_dim;
  const std::int64_t kv = spec.kv_heads * spec.head_dim;
  const std::int64_t attention = spec.hidden * (q + 2 * kv) + q * spec.hidden;
  const std::int64_t feed_forward = (spec.arch == Architecture::kLlama ? 3 : 2) * spec.hidden * spec.ffn_hidden;
  const std::int64_t multiplied = spec.layers * (attention + feed_forward) + spec.vocab * spec.hidden;
  return 6 * multiplied + 6 * spec.layers * q * seq_len;
}

}  // namespace meshtrain
