#include "checkpoint/huggingface/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/huggingface/exporter.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

ModelSpec spec_of(const Json& json) {
  return spec_of_hf_config(json.dump(), "config.json");
}

std::string complaint(const std::string& text) {
  try {
    spec_of_hf_config(text, "m/config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_complaint(const Json& json, std::initializer_list<std::string_view> parts) {
  const std::string message = complaint(json.dump());
  EXPECT_NE(message, "accepted") << json;
  EXPECT_TRUE(message.starts_with("m/config.json: ")) << message;
  for (const std::string_view part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

// The fields that matter of the config.json that these models are published with.
TEST(HfConfig, PublishedModelsArePresets) {
  const std::pair<const char*, Json> published[] = {
      {"gpt2-124m",
       {{"model_type", "gpt2"},
        {"n_ctx", 1024},
        {"n_embd", 768},
        {"n_head", 12},
        {"n_layer", 12},
        {"n_positions", 1024},
        {"vocab_size", 50257},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", 1e-5},
        {"resid_pdrop", 0.1}}},
      {"smollm2-135m",
       {{"model_type", "llama"},
        {"attention_bias", false},
        {"hidden_act", "silu"},
        {"hidden_size", 576},
        {"initializer_range", 0.041666666666666664},
        {"intermediate_size", 1536},
        {"max_position_embeddings", 8192},
        {"num_attention_heads", 9},
        {"num_hidden_layers", 30},
        {"num_key_value_heads", 3},
        {"rms_norm_eps", 1e-5},
        {"rope_scaling", nullptr},
        {"rope_theta", 100000},
        {"tie_word_embeddings", true},
        {"vocab_size", 49152},
        {"torch_dtype", "bfloat16"},
        {"pretraining_tp", 1},
        {"rope_interleaved", false}}},
      {"llama-3.2-1b",
       {{"model_type", "llama"},
        {"head_dim", 64},
        {"hidden_act", "silu"},
        {"hidden_size", 2048},
        {"intermediate_size", 8192},
        {"max_position_embeddings", 131072},
        {"mlp_bias", false},
        {"num_attention_heads", 32},
        {"num_hidden_layers", 16},
        {"num_key_value_heads", 8},
        {"rms_norm_eps", 1e-5},
        {"rope_scaling",
         {{"factor", 32.0},
          {"high_freq_factor", 4.0},
          {"low_freq_factor", 1.0},
          {"original_max_position_embeddings", 8192},
          {"rope_type", "llama3"}}},
        {"rope_theta", 500000.0},
        {"tie_word_embeddings", true},
        {"vocab_size", 128256}}},
      {"qwen2.5-0.5b",
       {{"model_type", "qwen2"},
        {"hidden_act", "silu"},
        {"hidden_size", 896},
        {"intermediate_size", 4864},
        {"max_position_embeddings", 32768},
        {"max_window_layers", 24},
        {"num_attention_heads", 14},
        {"num_hidden_layers", 24},
        {"num_key_value_heads", 2},
        {"rms_norm_eps", 1e-6},
        {"rope_theta", 1000000.0},
        {"sliding_window", 32768},
        {"tie_word_embeddings", true},
        {"use_sliding_window", false},
        {"vocab_size", 151936}}},
      {"qwen3-0.6b",
       {{"model_type", "qwen3"},
        {"attention_bias", false},
        {"head_dim", 128},
        {"hidden_size", 1024},
        {"intermediate_size", 3072},
        {"max_position_embeddings", 40960},
        {"num_attention_heads", 16},
        {"num_hidden_layers", 28},
        {"num_key_value_heads", 8},
        {"rms_norm_eps", 1e-6},
        {"rope_scaling", nullptr},
        {"rope_theta", 1000000},
        {"sliding_window", nullptr},
        {"tie_word_embeddings", true},
        {"vocab_size", 151936}}},
  };
  for (const auto& [name, json] : published) EXPECT_EQ(spec_of(json), preset(name)) << name;
}

TEST(HfConfig, FieldsLeftOutHaveTheDefaultsOfTheLibrary) {
  // LlamaConfig(), MistralConfig(), Qwen2Config(), Qwen3Config(), GPT2Config() of transformers 4.57.1.
  const ModelSpec llama = {.arch = Architecture::kLlama,
                           .layers = 32,
                           .hidden = 4096,
                           .heads = 32,
                           .kv_heads = 32,
                           .head_dim = 128,
                           .ffn_hidden = 11008,
                           .vocab = 32000,
                           .context = 2048,
                           .tie_embeddings = false,
                           .norm_eps = 1e-6,
                           .rope_theta = 10000.0};
  EXPECT_EQ(spec_of({{"model_type", "llama"}}), llama);
  ModelSpec qwen2 = llama;
  qwen2.ffn_hidden = 22016;
  qwen2.vocab = 151936;
  qwen2.context = 32768;
  ModelSpec qwen3 = qwen2;
  qwen2.qkv_bias = true;
  qwen3.qk_norm = true;
  EXPECT_EQ(spec_of({{"model_type", "qwen2"}}), qwen2);
  EXPECT_EQ(spec_of({{"model_type", "qwen3"}}), qwen3);
  ModelSpec mistral = llama;
  mistral.kv_heads = 8;
  mistral.ffn_hidden = 14336;
  mistral.context = 131072;
  EXPECT_EQ(spec_of({{"model_type", "mistral"}, {"sliding_window", nullptr}}), mistral);
  EXPECT_EQ(spec_of({{"model_type", "gpt2"}}), preset("gpt2-124m"));
  // Derived ones follow what is said; Qwen3's heads are 128 wide whatever the hidden size.
  EXPECT_EQ(spec_of({{"model_type", "llama"}, {"hidden_size", 512}, {"num_attention_heads", 8}}).head_dim, 64);
  EXPECT_EQ(spec_of({{"model_type", "llama"}, {"num_attention_heads", 16}}).kv_heads, 16);
  EXPECT_EQ(spec_of({{"model_type", "qwen3"}, {"hidden_size", 1024}}).head_dim, 128);
  EXPECT_EQ(spec_of({{"model_type", "qwen3"}, {"hidden_size", 1024}, {"head_dim", nullptr}}).head_dim, 32);
  EXPECT_EQ(spec_of({{"model_type", "gpt2"}, {"n_embd", 48}, {"n_inner", nullptr}}).ffn_hidden, 192);
}

TEST(HfConfig, NewerFilesSayTheSameInOtherPlaces) {
  const Json scaling = {{"factor", 8.0},
                        {"high_freq_factor", 4.0},
                        {"low_freq_factor", 1.0},
                        {"original_max_position_embeddings", 4096}};
  Json old_scaling = scaling;
  old_scaling["type"] = "llama3";
  Json parameters = scaling;
  parameters["rope_type"] = "llama3";
  parameters["rope_theta"] = 500000.0;
  const ModelSpec expected =
      spec_of({{"model_type", "llama"}, {"rope_theta", 500000.0}, {"rope_scaling", old_scaling}});
  EXPECT_EQ(expected.rope_scaling.factor, 8.0);
  EXPECT_EQ(expected.rope_scaling.original_context, 4096);
  EXPECT_EQ(spec_of({{"model_type", "llama"}, {"rope_parameters", parameters}}), expected);
  parameters["factor"] = 1;
  EXPECT_EQ(spec_of({{"model_type", "llama"}, {"rope_parameters", parameters}}),
            spec_of({{"model_type", "llama"}, {"rope_theta", 500000.0}}));
  EXPECT_EQ(spec_of({{"model_type", "llama"},
                     {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}}),
            spec_of({{"model_type", "llama"}}));
}

// Versions of the library differ in which of the two they believe.
TEST(HfConfig, PlacesThatContradictEachOtherAreRefused) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 4096}};
  const Json plain = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  const auto llama = [](Json more) {
    more["model_type"] = "llama";
    return more;
  };
  expect_complaint(llama({{"rope_scaling", llama3}, {"rope_parameters", plain}}),
                   {"rope_parameters", "remove"});
  expect_complaint(llama({{"rope_scaling", plain}, {"rope_parameters", llama3}}),
                   {"rope_parameters", "remove"});
  expect_complaint(llama({{"rope_theta", 5e5}, {"rope_parameters", plain}}), {"rope_parameters", "remove"});
  expect_complaint(llama({{"rope_scaling", llama3}, {"original_max_position_embeddings", 8192}}),
                   {"original_max_position_embeddings = 8192", "rope_scaling says 4096"});
  const ModelSpec scaled = spec_of(llama({{"rope_scaling", llama3}, {"rope_theta", 10000.0}}));
  EXPECT_EQ(scaled.rope_scaling.factor, 8.0);
  EXPECT_EQ(
      spec_of(llama(
          {{"rope_scaling", llama3}, {"rope_parameters", llama3}, {"original_max_position_embeddings", 4096}})),
      scaled);
  EXPECT_EQ(spec_of(llama({{"rope_scaling", Json::object()}, {"rope_parameters", llama3}})), scaled);
}

TEST(HfConfig, Gpt2HasTwoNamesOfItsSizes) {
  EXPECT_EQ(spec_of({{"model_type", "gpt2"},
                     {"num_attention_heads", 16},
                     {"hidden_size", 1024},
                     {"num_hidden_layers", 24},
                     {"max_position_embeddings", 1024}}),
            preset("gpt2-355m"));
  EXPECT_EQ(spec_of({{"model_type", "gpt2"}, {"num_attention_heads", 16}, {"n_head", 16}}).heads, 16);
  expect_complaint({{"model_type", "gpt2"}, {"num_attention_heads", 16}, {"n_head", 12}},
                   {"num_attention_heads = 16", "n_head = 12"});
}

TEST(HfConfig, WhatIsNotComputedHereIsRefusedByName) {
  const auto with = [](const char* type, const char* key, const Json& value) {
    return Json{{"model_type", type}, {key, value}};
  };
  expect_complaint(with("llama", "hidden_act", "gelu"), {"hidden_act", "\"gelu\"", "silu"});
  expect_complaint(with("llama", "attention_bias", true), {"attention_bias", "true"});
  expect_complaint(with("qwen3", "attention_bias", true), {"attention_bias", "true"});
  expect_complaint(with("llama", "mlp_bias", true), {"mlp_bias"});
  expect_complaint(with("llama", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
                   {"rope_scaling.rope_type", "\"yarn\"", "llama3"});
  expect_complaint(with("llama", "rope_scaling", {{"type", "linear"}, {"factor", 4.0}}),
                   {"rope_scaling.type", "\"linear\""});
  expect_complaint(with("llama", "rope_scaling", {{"type", "llama3"}, {"factor", 4.0}}),
                   {"rope_scaling.low_freq_factor is missing"});
  expect_complaint(with("llama", "rope_scaling", 3), {"rope_scaling is not a JSON object"});
  expect_complaint(with("llama", "partial_rotary_factor", 0.5), {"partial_rotary_factor", "0.5"});
  expect_complaint(with("llama", "quantization_config", {{"bits", 4}}), {"quantization_config"});
  expect_complaint(with("qwen2", "use_sliding_window", true), {"use_sliding_window"});
  expect_complaint(with("qwen3", "layer_types", {"full_attention", "sliding_attention"}), {"layer_types"});
  expect_complaint(with("mistral", "sliding_window", 4096), {"sliding_window", "4096"});
  expect_complaint({{"model_type", "mistral"}},
                   {"sliding_window", "window", "max_position_embeddings = 131072"});
  for (const char* type : {"llama", "gpt2"}) {
    expect_complaint(with(type, "is_causal", false), {"is_causal", "false"});
    expect_complaint(with(type, "per_layer_config", {{"0", {{"head_dim", 4}}}}), {"per_layer_config"});
  }
  expect_complaint(with("llama", "rope_parameters", {{"full_attention", {{"rope_type", "yarn"}}}}),
                   {"rope_parameters.full_attention", "differ by layer"});
  // False for the library.
  expect_complaint(with("gpt2", "scale_attn_weights", nullptr), {"scale_attn_weights = null"});
  expect_complaint(with("gpt2", "activation_function", "gelu"), {"activation_function", "gelu_new"});
  expect_complaint(with("gpt2", "scale_attn_weights", false), {"scale_attn_weights"});
  expect_complaint(with("gpt2", "scale_attn_by_inverse_layer_idx", true), {"scale_attn_by_inverse_layer_idx"});
  expect_complaint(with("gpt2", "add_cross_attention", true), {"add_cross_attention"});
  expect_complaint({{"model_type", "qwen3_moe"}}, {"model_type = \"qwen3_moe\"", "qwen3", "gpt2"});
  expect_complaint({{"hidden_size", 4}}, {"model_type is missing"});
}

TEST(HfConfig, ValuesThatAreNoneAreRefusedByName) {
  const auto with = [](const char* key, const Json& value) {
    return Json{{"model_type", "llama"}, {key, value}};
  };
  expect_complaint(with("hidden_size", "4096"), {"hidden_size = \"4096\"", "whole number"});
  expect_complaint(with("hidden_size", 64.5), {"hidden_size = 64.5"});
  expect_complaint(with("hidden_size", -1), {"hidden_size = -1"});
  expect_complaint(with("vocab_size", std::uint64_t{1} << 63U), {"vocab_size"});
  expect_complaint(with("num_hidden_layers", 0), {"num_hidden_layers = 0"});
  expect_complaint(with("rms_norm_eps", "small"), {"rms_norm_eps"});
  expect_complaint(with("tie_word_embeddings", 1), {"tie_word_embeddings = 1"});
  expect_complaint(with("num_attention_heads", 7), {"num_attention_heads = 7", "4096"});
  expect_complaint(with("num_key_value_heads", 5), {"num_key_value_heads = 5", "num_attention_heads = 32"});
  expect_complaint(with("head_dim", 5), {"head_dim = 5"});
  expect_complaint(with("rms_norm_eps", 0.0), {"norm_eps = 0"});
  EXPECT_NE(complaint("{").find("not JSON"), std::string::npos);
  EXPECT_NE(complaint("[]").find("not a JSON object"), std::string::npos);
}

TEST(HfConfig, WhatIsWrittenReadsBackAsTheSameModel) {
  for (const std::string& name : preset_names()) {
    ModelSpec spec = preset(name);
    if (spec.vocab == 0) spec.vocab = 257;
    EXPECT_EQ(spec_of_hf_config(hf_config_of(spec, DType::kBF16, Json::object()), "x"), spec) << name;
  }
  const Json config = Json::parse(
      hf_config_of(preset("qwen3-0.6b"), DType::kBF16, {{"eos_token_id", {7, 9}}, {"pad_token_id", nullptr}}));
  EXPECT_EQ(config.at("architectures"), Json({"Qwen3ForCausalLM"}));
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(config.at("eos_token_id"), Json({7, 9}));
  EXPECT_TRUE(config.at("pad_token_id").is_null());
  EXPECT_FALSE(config.contains("bos_token_id"));  // the library's default is the folder's, too
}

TEST(HfConfig, ModelsThatTheLibraryDoesNotHaveAreNotWritten) {
  ModelSpec both = preset("qwen3-0.6b");
  both.qkv_bias = true;
  EXPECT_THROW(hf_config_of(both, DType::kF32, Json::object()), UserError);
  ModelSpec wide = preset("gpt2-124m");
  wide.head_dim = 32;
  EXPECT_THROW(hf_config_of(wide, DType::kF32, Json::object()), UserError);
}

TEST(HfConfig, OnlyTheTypeOfTheWeightsIsChanged) {
  const std::string text = R"({"b": 1, "dtype": "float32", "a": [2]})";
  EXPECT_EQ(with_hf_dtype(text, DType::kBF16),
            "{\n  \"b\": 1,\n  \"dtype\": \"bfloat16\",\n  \"a\": [\n    2\n  ]\n}\n");
  EXPECT_NE(with_hf_dtype("{}", DType::kF16).find("\"torch_dtype\": \"float16\""), std::string::npos);
}

TEST(HfFiles, AreCutAsTheLibraryCutsThem) {
  const ModelSpec spec = preset("llama-3-8b");
  const std::vector<HfStoredFile> files = hf_files(spec, DType::kBF16);
  ASSERT_EQ(files.size(), 4U);  // as published: 16.06 GB
  EXPECT_EQ(files[0].name, "model-00001-of-00004.safetensors");
  std::size_t tensors = 0;
  for (const HfStoredFile& file : files) tensors += file.tensors.size();
  EXPECT_EQ(tensors, 291U);  // of Meta-Llama-3-8B's index
  EXPECT_EQ(hf_files(preset("qwen2.5-0.5b"), DType::kBF16).at(0).name, "model.safetensors");
}

TEST(HfRecord, DamageIsNamed) {
  const HfRecord record = {.config_text = "{}",
                           .files = {{.name = "model.safetensors", .tensors = {{"a", DType::kF16}}}}};
  const HfRecord back = hf_record_from_json(to_json(record), "ckpt");
  EXPECT_EQ(back.config_text, record.config_text);
  EXPECT_EQ(back.files, record.files);
  for (const char* text : {R"({})", R"({"config": 3, "files": []})",
                           R"({"config": "", "files": [{"name": "../x", "tensors": []}]})",
                           R"({"config": "", "files": [{"name": "x", "tensors": [["a", "F64"]]}]})",
                           R"({"config": "", "files": [{"name": "x", "tensors": ["a"]}]})"}) {
    EXPECT_THROW(hf_record_from_json(Json::parse(text), "ckpt"), UserError) << text;
  }
}

}  // namespace
}  // namespace meshtrain
