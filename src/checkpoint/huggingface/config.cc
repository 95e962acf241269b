#include "checkpoint/huggingface/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

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

struct Rope {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

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

// What rope_scaling or rope_parameters says, if it is there.
Rope read_rope_object(const HfFieldReader& fields, const std::string& path, const char* key) {
  if (!fields.has(key) || fields.get(key).empty()) return {};
  const Json& object = fields.get(key);
  const HfFieldReader rope(object, path, key);
  for (const auto& [inner, value] : object.items()) {
    if (value.is_object())
      rope.refuse(inner.c_str(), "rotary positions that differ by layer are not supported");
  }
  require_whole_rotation(rope);
  const RopeScaling scaling = read_scaling(rope);
  // Some versions of the library read the one, some the other.
  const bool scales = scaling != RopeScaling{};
  if (scales &&
      fields.size("original_max_position_embeddings", scaling.original_context) != scaling.original_context) {
    fields.refuse("original_max_position_embeddings",
                  fmt::format("{} says {}; remove the wrong one", key, scaling.original_context));
  }
  if (!rope.has("rope_theta")) return {std::nullopt, scaling};
  return {rope.number("rope_theta", 0.0), scaling};
}

// rope_theta stands beside rope_scaling, or inside rope_parameters in newer files. Where both are there and say
// different things, versions of the library differ in which of them they believe.
void read_rope(const HfFieldReader& fields, const std::string& path, ModelSpec& spec) {
  require_whole_rotation(fields);
  Rope older = read_rope_object(fields, path, "rope_scaling");
  const Rope newer = read_rope_object(fields, path, "rope_parameters");
  if (fields.has("rope_theta")) older.theta = fields.number("rope_theta", 0.0);
  const bool differ = (older.theta && newer.theta && older.theta != newer.theta) ||
                      (older.scaling && newer.scaling && older.scaling != newer.scaling);
  if (differ) {
    fields.refuse("rope_parameters",
                  "rope_theta or rope_scaling beside it says something else; remove what is wrong");
  }
  spec.rope_theta = newer.theta.value_or(older.theta.value_or(10000.0));
  spec.rope_scaling = newer.scaling.value_or(older.scaling.value_or(RopeScaling{}));
}

void refuse_windows(const HfFieldReader& fields, const std::string& model_type, std::int64_t context) {
  constexpr std::string_view kWhy =
      "attention within a window is not supported (for sequences that fit the window, turn it off in this "
      "file)";
  fields.require_flag("use_sliding_window", false, false, kWhy);
  if (fields.has("layer_types")) {
    const Json& types = fields.get("layer_types");
    const auto full = [](const Json& type) { return type == "full_attention"; };
    if (!types.is_array() || !std::all_of(types.begin(), types.end(), full)) fields.refuse("layer_types", kWhy);
  }
  // Qwen configs name a window that use_sliding_window turns off; Mistral's counts, 4096 unless it says null.
  if (model_type != "mistral") return;
  const std::int64_t window =
      fields.says_null("sliding_window") ? context : fields.size("sliding_window", 4096);
  if (window >= context) return;
  fields.refuse(
      "sliding_window",
      fmt::format("it is shorter than max_position_embeddings = {}, and attention within a window is not "
                  "supported. For sequences of at most {} tokens, set max_position_embeddings to that",
                  context, window));
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

// The library takes either name.
std::int64_t read_size(const HfFieldReader& fields, const char* key, const char* alias,
                       std::int64_t otherwise) {
  const std::int64_t size = fields.size(key, fields.size(alias, otherwise));
  if (fields.size(alias, size) != size) {
    fields.refuse(alias, fmt::format("{} = {} means the same; remove the wrong one", key, size));
  }
  return size;
}

ModelSpec read_gpt2(const HfFieldReader& fields) {
  ModelSpec spec{.arch = Architecture::kGpt2};
  spec.layers = read_size(fields, "n_layer", "num_hidden_layers", 12);
  spec.hidden = read_size(fields, "n_embd", "hidden_size", 768);
  spec.heads = read_size(fields, "n_head", "num_attention_heads", 12);
  spec.kv_heads = spec.heads;
  if (spec.hidden % spec.heads != 0)
    fields.refuse("n_head", fmt::format("it does not divide n_embd = {}", spec.hidden));
  spec.head_dim = spec.hidden / spec.heads;
  spec.ffn_hidden = fields.size("n_inner", 4 * spec.hidden);
  spec.vocab = fields.size("vocab_size", 50257);
  spec.context = read_size(fields, "n_positions", "max_position_embeddings", 1024);
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

// Messages of validate() name keys of [model]; this is about a file that has others.
std::string with_hf_keys(std::string text, Architecture arch) {
  struct Key {
    std::string_view ours;
    std::string_view llama;
    std::string_view gpt2;
  };
  constexpr std::array<Key, 15> kKeys = {{
      {"model.layers", "num_hidden_layers", "n_layer"},
      {"model.hidden", "hidden_size", "n_embd"},
      {"model.heads", "num_attention_heads", "n_head"},
      {"model.kv_heads", "num_key_value_heads", "n_head"},
      {"model.head_dim", "head_dim", "n_embd / n_head"},
      {"model.ffn_hidden", "intermediate_size", "n_inner"},
      {"model.vocab", "vocab_size", "vocab_size"},
      {"model.context", "max_position_embeddings", "n_positions"},
      {"model.norm_eps", "rms_norm_eps", "layer_norm_epsilon"},
      {"model.init_std", "initializer_range", "initializer_range"},
      {"model.rope_theta", "rope_theta", ""},
      {"model.rope_scaling_factor", "the rotary factor", ""},
      {"model.rope_low_freq_factor", "low_freq_factor", ""},
      {"model.rope_high_freq_factor", "high_freq_factor", ""},
      {"model.rope_original_context", "original_max_position_embeddings", ""},
  }};
  for (const Key& key : kKeys) {
    const std::string_view theirs = arch == Architecture::kGpt2 ? key.gpt2 : key.llama;
    for (std::size_t at = text.find(key.ours); at != std::string::npos; at = text.find(key.ours, at)) {
      text.replace(at, key.ours.size(), theirs);
      at += theirs.size();
    }
  }
  return text;
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
  fields.require_flag("is_causal", true, true, "attention to later tokens is not supported");
  fields.require_absent("per_layer_config", "layers that differ are not supported");
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
    throw_user_error("{}: {}", path, with_hf_keys(error.what(), spec.arch));
  }
  return spec;
}

std::string hf_config_of(const ModelSpec& spec, DType dtype, const Json& token_ids) {
  OrderedJson config = spec.arch == Architecture::kGpt2 ? gpt2_config(spec) : llama_config(spec);
  config["tie_word_embeddings"] = spec.tie_embeddings;
  for (const auto& [key, value] : token_ids.items()) config[key] = OrderedJson(value);
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
