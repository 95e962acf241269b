#include "checkpoint/huggingface/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_reason.h"
#include "checkpoint/huggingface/config_reader.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Defaults of the library's LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config; 0: derived.
struct LlamaFamily {
  std::string_view model_type;
  std::string_view architecture;
  std::int64_t vocab = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t context = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
};

constexpr std::array<LlamaFamily, 4> kLlamaFamilies = {{
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .vocab = 32000,
     .ffn_hidden = 11008,
     .context = 2048},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab = 151936,
     .ffn_hidden = 22016,
     .kv_heads = 32,
     .context = 32768,
     .qkv_bias = true},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab = 151936,
     .ffn_hidden = 22016,
     .kv_heads = 32,
     .head_dim = 128,
     .context = 32768,
     .qk_norm = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .vocab = 32000,
     .ffn_hidden = 14336,
     .kv_heads = 8,
     .context = 131072},
}};

RopeScaling read_scaling(const HfFieldReader& rope) {
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  rope.require_text(key, "default", {"default", "llama3"},
                    "only \"default\" and \"llama3\" rotary positions are supported");
  if (rope.text(key, "default") == "default") return {};
  const RopeScaling scaling = {.factor = rope.required_number("factor"),
                               .low_freq_factor = rope.required_number("low_freq_factor"),
                               .high_freq_factor = rope.required_number("high_freq_factor"),
                               .original_context = rope.required_size("original_max_position_embeddings")};
  return scaling.factor == 1.0 ? RopeScaling{} : scaling;  // by 1: none
}

void require_whole_rotation(const HfFieldReader& fields) {
  if (fields.number("partial_rotary_factor", 1.0) != 1.0)
    fields.refuse("partial_rotary_factor", "only whole heads are rotated here");
}

// rope_theta stands beside rope_scaling, or inside rope_parameters in newer files.
void read_rope(const HfFieldReader& fields, const std::string& path, ModelSpec& spec) {
  spec.rope_theta = fields.number("rope_theta", 10000.0);
  require_whole_rotation(fields);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    const HfFieldReader rope(fields.get(key), path, key);
    spec.rope_theta = rope.number("rope_theta", spec.rope_theta);
    require_whole_rotation(rope);
    spec.rope_scaling = read_scaling(rope);
  }
}

void refuse_windows(const HfFieldReader& fields, const std::string& model_type, std::int64_t context) {
  constexpr std::string_view kWhy = "attention within a window is not supported";
  fields.require_flag("use_sliding_window", false, false, kWhy);
  if (fields.has("layer_types")) {
    const Json& types = fields.get("layer_types");
    const auto full = [](const Json& type) { return type == "full_attention"; };
    if (!types.is_array() || !std::all_of(types.begin(), types.end(), full)) fields.refuse("layer_types", kWhy);
  }
  // Qwen configs name a window that use_sliding_window turns off; Mistral's counts, 4096 unless it says null.
  if (model_type != "mistral") return;
  if (!fields.says_null("sliding_window") && fields.size("sliding_window", 4096) < context)
    fields.refuse("sliding_window", kWhy);
}

ModelSpec read_llama(const HfFieldReader& fields, const std::string& path, const LlamaFamily& family) {
  ModelSpec spec{.arch = Architecture::kLlama};
  spec.layers = fields.size("num_hidden_layers", 32);
  spec.hidden = fields.size("hidden_size", 4096);
  spec.heads = fields.size("num_attention_heads", 32);
  const bool all_heads = family.kv_heads == 0 || fields.says_null("num_key_value_heads");
  spec.kv_heads = fields.size("num_key_value_heads", all_heads ? spec.heads : family.kv_heads);
  const bool quotient = family.head_dim == 0 || fields.says_null("head_dim");
  if (quotient && !fields.has("head_dim") && spec.hidden % spec.heads != 0)
    fields.refuse("num_attention_heads", fmt::format("it does not divide hidden_size = {}", spec.hidden));
  spec.head_dim = fields.size("head_dim", quotient ? spec.hidden / spec.heads : family.head_dim);
  spec.ffn_hidden = fields.size("intermediate_size", family.ffn_hidden);
  spec.vocab = fields.size("vocab_size", family.vocab);
  spec.context = fields.size("max_position_embeddings", family.context);
  spec.tie_embeddings = fields.flag("tie_word_embeddings", false);
  spec.norm_eps = fields.number("rms_norm_eps", 1e-6);
  spec.init_std = fields.number("initializer_range", 0.02);
  spec.qkv_bias = family.qkv_bias;
  spec.qk_norm = family.qk_norm;
  read_rope(fields, path, spec);
  fields.require_text("hidden_act", "silu", {"silu", "swish"}, "only \"silu\" is supported");
  // Qwen2 has biases whatever it says.
  if (!family.qkv_bias)
    fields.require_flag("attention_bias", false, false, "biases in attention are not supported");
  fields.require_flag("mlp_bias", false, false, "biases in the MLP are not supported");
  refuse_windows(fields, std::string(family.model_type), spec.context);
  return spec;
}

ModelSpec read_gpt2(const HfFieldReader& fields) {
  ModelSpec spec{.arch = Architecture::kGpt2};
  spec.layers = fields.size("n_layer", 12);
  spec.hidden = fields.size("n_embd", 768);
  spec.heads = fields.size("n_head", 12);
  spec.kv_heads = spec.heads;
  if (spec.hidden % spec.heads != 0)
    fields.refuse("n_head", fmt::format("it does not divide n_embd = {}", spec.hidden));
  spec.head_dim = spec.hidden / spec.heads;
  spec.ffn_hidden = fields.size("n_inner", 4 * spec.hidden);
  spec.vocab = fields.size("vocab_size", 50257);
  spec.context = fields.size("n_positions", 1024);
  spec.tie_embeddings = fields.flag("tie_word_embeddings", true);
  spec.norm_eps = fields.number("layer_norm_epsilon", 1e-5);
  spec.init_std = fields.number("initializer_range", 0.02);
  // Two names of one function.
  fields.require_text("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"},
                      "only \"gelu_new\" is supported");
  fields.require_flag("scale_attn_weights", true, true, "unscaled attention is not supported");
  fields.require_flag("scale_attn_by_inverse_layer_idx", false, false,
                      "attention scaled by the layer is not supported");
  fields.require_flag("add_cross_attention", false, false, "cross-attention is not supported");
  return spec;
}

[[noreturn]] void throw_unknown_type(const std::string& path, const std::string& type) {
  std::vector<std::string_view> known = {"gpt2"};
  for (const LlamaFamily& family : kLlamaFamilies) known.push_back(family.model_type);
  throw_user_error("{}: model_type = \"{}\" is not supported; supported are {}.", path, type.substr(0, 80),
                   fmt::join(known, ", "));
}

ModelSpec read_spec(const HfFieldReader& fields, const std::string& path) {
  if (!fields.has("model_type")) {
    throw_user_error("{}: model_type is missing, so this is not the config.json of a Hugging Face model.",
                     path);
  }
  fields.require_absent("quantization_config",
                        "quantized weights are not supported; use the folder of the original weights");
  fields.require_flag("is_encoder_decoder", false, false, "only decoders are supported");
  const std::string type = fields.text("model_type", "");
  if (type == "gpt2") return read_gpt2(fields);
  for (const LlamaFamily& family : kLlamaFamilies) {
    if (family.model_type == type) return read_llama(fields, path, family);
  }
  throw_unknown_type(path, type);
}

OrderedJson gpt2_config(const ModelSpec& spec) {
  if (spec.head_dim * spec.heads != spec.hidden) {
    throw_user_error(
        "model.head_dim = {} times model.heads = {} is not model.hidden = {}: the Hugging Face library has no "
        "such GPT-2, so it cannot be exported.",
        spec.head_dim, spec.heads, spec.hidden);
  }
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", spec.vocab},
          {"n_positions", spec.context},
          {"n_embd", spec.hidden},
          {"n_layer", spec.layers},
          {"n_head", spec.heads},
          {"n_inner", spec.ffn_hidden},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", spec.norm_eps},
          {"initializer_range", spec.init_std},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

OrderedJson llama_config(const ModelSpec& spec) {
  const auto family = std::find_if(kLlamaFamilies.begin(), kLlamaFamilies.end(), [&](const auto& one) {
    return one.qkv_bias == spec.qkv_bias && one.qk_norm == spec.qk_norm;
  });
  if (family == kLlamaFamilies.end()) {
    throw_user_error(
        "model.qkv_bias and model.qk_norm are both set: the Hugging Face library has no such model, so it "
        "cannot be exported.");
  }
  OrderedJson config = {{"architectures", {family->architecture}},
                        {"model_type", family->model_type},
                        {"vocab_size", spec.vocab},
                        {"hidden_size", spec.hidden},
                        {"intermediate_size", spec.ffn_hidden},
                        {"num_hidden_layers", spec.layers},
                        {"num_attention_heads", spec.heads},
                        {"num_key_value_heads", spec.kv_heads},
                        {"head_dim", spec.head_dim},
                        {"hidden_act", "silu"},
                        {"max_position_embeddings", spec.context},
                        {"initializer_range", spec.init_std},
                        {"rms_norm_eps", spec.norm_eps},
                        {"rope_theta", spec.rope_theta},
                        {"attention_dropout", 0.0}};
  if (!family->qkv_bias) config["attention_bias"] = false;
  if (family->model_type == "llama") config["mlp_bias"] = false;
  if (family->model_type != "llama") config["use_sliding_window"] = false;
  const RopeScaling& scaling = spec.rope_scaling;
  if (scaling.factor != 1.0) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_freq_factor},
                              {"high_freq_factor", scaling.high_freq_factor},
                              {"original_max_position_embeddings", scaling.original_context}};
  }
  return config;
}

}  // namespace

ModelSpec spec_of_hf_config(std::string_view text, const std::string& path) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw_user_error("{} is not JSON: {}.", path, json_reason(error));
  }
  const HfFieldReader fields(json, path);
  const ModelSpec spec = read_spec(fields, path);
  try {
    validate(spec);
  } catch (const UserError& error) {
    throw_user_error("{}: {}", path, error.what());
  }
  return spec;
}

std::string hf_config_of(const ModelSpec& spec, DType dtype, std::optional<std::int64_t> eos_token) {
  OrderedJson config = spec.arch == Architecture::kGpt2 ? gpt2_config(spec) : llama_config(spec);
  config["tie_word_embeddings"] = spec.tie_embeddings;
  // Null: the library's own defaults may lie outside of a small vocabulary.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = eos_token ? OrderedJson(*eos_token) : nullptr;
  config["torch_dtype"] = hf_dtype_name(dtype);
  config["use_cache"] = true;
  return config.dump(2) + "\n";
}

std::string with_hf_dtype(const std::string& config_text, DType dtype) {
  OrderedJson config = OrderedJson::parse(config_text);
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = hf_dtype_name(dtype);
  return config.dump(2) + "\n";
}

std::string_view hf_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      check(false, "a weight is fp32, bf16 or fp16");
      return "";
  }
}

}  // namespace meshtrain
