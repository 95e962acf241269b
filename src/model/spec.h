// What a model is: its architecture and sizes, independent of any mesh, device or precision.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

enum class Architecture : std::uint8_t {
  kGpt2,   // learned positions, LayerNorm, tanh-GELU, biases
  kLlama,  // RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases but the optional QKV one
};

std::string_view name_of(Architecture architecture);  // "gpt2", "llama"

// Llama-3's frequency scaling (Llama 3.1 model card; "rope_type": "llama3" in Hugging Face configs).
struct RopeScaling {
  double factor = 1.0;  // 1: off
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_context = 8192;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelSpec {
  Architecture arch = Architecture::kLlama;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;    // divides heads; gpt2: equal to heads
  std::int64_t head_dim = 0;    // hidden / heads unless said
  std::int64_t ffn_hidden = 0;  // gpt2: 4·hidden unless said
  std::int64_t vocab = 0;
  std::int64_t context = 0;  // longest sequence
  bool tie_embeddings = false;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling{};
  bool qkv_bias = false;  // llama: as in Qwen2
  bool qk_norm = false;   // llama: RMSNorm of each query and key head, as in Qwen3
  double init_std = 0.02;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

// Published shapes by name. Throws UserError naming the nearest known preset.
const ModelSpec& preset(std::string_view name);
std::vector<std::string> preset_names();

// Number of trained parameters; a tied head counts once.
std::int64_t parameter_count(const ModelSpec& spec);

// Throws UserError when the sizes contradict each other, naming the config key, the value and what would do.
void validate(const ModelSpec& spec);

}  // namespace meshtrain
