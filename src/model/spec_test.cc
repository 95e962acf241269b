#include "model/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace meshtrain {
namespace {

// What validate() says, or "" when it accepts.
std::string complaint(const ModelSpec& spec) {
  try {
    validate(spec);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_complaint(const ModelSpec& spec, std::initializer_list<std::string_view> parts) {
  const std::string message = complaint(spec);
  ASSERT_FALSE(message.empty()) << "accepted";
  for (const std::string_view part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

ModelSpec llama() {
  ModelSpec spec = preset("llama-tiny");
  spec.vocab = 256;
  return spec;
}

// Published counts: those that torch gives for the Hugging Face models of these names.
TEST(ModelSpec, ParameterCountsArePublishedOnes) {
  const std::pair<std::string_view, std::int64_t> published[] = {
      {"gpt2-124m", 124'439'808},          {"gpt2-355m", 354'823'168},      {"gpt2-774m", 774'030'080},
      {"gpt2-1558m", 1'557'611'200},       {"smollm2-135m", 134'515'008},   {"qwen2.5-0.5b", 494'032'768},
      {"qwen3-0.6b", 596'049'920},         {"llama-3.2-1b", 1'235'814'400}, {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},     {"llama-3.1-8b", 8'030'261'248}, {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.1-405b", 405'853'388'800},
  };
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(preset(name)), count) << name;
}

TEST(ModelSpec, UntiedHeadAddsItsWeight) {
  ModelSpec spec = preset("gpt2-124m");
  spec.tie_embeddings = false;
  EXPECT_EQ(parameter_count(spec), 124'439'808 + 50257 * 768);
}

TEST(ModelSpec, EveryPresetIsValidOnceItHasAVocabulary) {
  for (const std::string& name : preset_names()) {
    ModelSpec spec = preset(name);
    if (spec.vocab == 0) spec.vocab = 256;
    EXPECT_EQ(complaint(spec), "") << name;
  }
}

TEST(ModelSpec, PublishedConstants) {
  EXPECT_EQ(preset("llama-3.2-1b").rope_scaling.factor, 32.0);
  EXPECT_EQ(preset("llama-3.1-405b").rope_scaling.factor, 8.0);
  EXPECT_EQ(preset("llama-3-8b").rope_scaling.factor, 1.0);
  EXPECT_EQ(preset("llama-3-8b").context, 8192);
  EXPECT_EQ(preset("llama-3-8b").rope_theta, 500000.0);
  EXPECT_EQ(preset("qwen2.5-0.5b").norm_eps, 1e-6);
  EXPECT_EQ(preset("qwen2.5-0.5b").rope_theta, 1e6);
  EXPECT_EQ(preset("smollm2-135m").rope_theta, 1e5);
  EXPECT_EQ(preset("gpt2-124m").norm_eps, 1e-5);
}

TEST(ModelSpec, UnknownPresetNamesTheNearest) {
  try {
    preset("gpt2-124");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("nearest is \"gpt2-124m\""), std::string::npos) << error.what();
  }
  EXPECT_THROW(preset(""), UserError);
}

TEST(ModelSpec, RefusesContradictions) {
  ModelSpec spec = llama();
  spec.kv_heads = 3;
  expect_complaint(spec, {"model.kv_heads = 3", "model.heads = 4", "2 or 4"});

  spec = llama();
  spec.heads = 5;
  spec.kv_heads = 5;
  spec.head_dim = 0;
  expect_complaint(spec, {"model.heads = 5", "model.hidden = 64", "4 or 8", "model.head_dim"});
  spec.head_dim = 16;  // now its width is said
  EXPECT_EQ(complaint(spec), "");

  spec = llama();
  spec.head_dim = 15;
  expect_complaint(spec, {"model.head_dim = 15", "14 or 16"});

  spec = preset("gpt2-124m");
  spec.kv_heads = 4;
  expect_complaint(spec, {"model.kv_heads = 4", "gpt2", "12"});
  spec = preset("gpt2-124m");
  spec.qk_norm = true;
  expect_complaint(spec, {"model.qk_norm", "gpt2"});
}

TEST(ModelSpec, RefusesImpossibleSizes) {
  using Member = std::int64_t ModelSpec::*;
  const std::pair<std::string_view, Member> sizes[] = {
      {"model.layers", &ModelSpec::layers},     {"model.hidden", &ModelSpec::hidden},
      {"model.heads", &ModelSpec::heads},       {"model.kv_heads", &ModelSpec::kv_heads},
      {"model.head_dim", &ModelSpec::head_dim}, {"model.ffn_hidden", &ModelSpec::ffn_hidden},
      {"model.vocab", &ModelSpec::vocab},       {"model.context", &ModelSpec::context},
  };
  for (const auto& [key, member] : sizes) {
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()}) {
      ModelSpec spec = llama();
      spec.*member = bad;
      expect_complaint(spec, {key, fmt::format("= {}", bad)});
    }
  }
  // Each size is allowed but the product is not.
  ModelSpec spec = llama();
  spec.layers = 100000;
  spec.hidden = 1 << 24;
  spec.ffn_hidden = 1 << 26;
  spec.vocab = 1 << 30;
  expect_complaint(spec, {"parameters", "model.hidden = 16777216"});
}

TEST(ModelSpec, RefusesImpossibleNumbers) {
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    ModelSpec spec = llama();
    spec.norm_eps = bad;
    expect_complaint(spec, {"model.norm_eps"});
    spec = llama();
    spec.rope_theta = bad;
    expect_complaint(spec, {"model.rope_theta"});
    spec = llama();
    spec.rope_scaling.factor = bad;
    expect_complaint(spec, {"model.rope_scaling_factor"});
  }
  ModelSpec spec = llama();
  spec.rope_scaling.low_freq_factor = 4.0;
  expect_complaint(spec, {"model.rope_high_freq_factor = 4", "model.rope_low_freq_factor = 4"});
  spec = llama();
  spec.init_std = std::nan("");
  expect_complaint(spec, {"model.init_std"});
}

}  // namespace
}  // namespace meshtrain
