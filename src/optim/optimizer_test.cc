#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "base/error.h"
#include "ops/testing.h"
#include "reference_data.h"

namespace meshtrain {
namespace {

using ops::testing::HostTensor;
using ops::testing::on_each_target;

OptimizerSettings settings_of(const nlohmann::json& json) {
  OptimizerSettings s;
  s.name = json.at("name").get<std::string>();
  s.betas = json.value("betas", s.betas);
  s.eps = json.value("eps", s.eps);
  s.weight_decay = json.at("weight_decay").get<double>();
  s.momentum = json.value("momentum", 0.0);
  s.alpha = json.value("alpha", s.alpha);
  return s;
}

HostTensor copy_of(std::span<const float> values) {
  HostTensor t(DType::kF32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), t.tensor().data<float>());
  return t;
}

void expect_same_bits(const HostTensor& actual, std::span<const float> expected, const std::string& what) {
  const float* got = actual.tensor().data<float>();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << "[" << i << "]: " << got[i] << ", PyTorch has " << expected[i];
  }
}

// Shards of one parameter, cut at odd places.
struct Shards {
  explicit Shards(std::span<const float> start)
      : master(copy_of(start)),
        gradient(DType::kF32, master.tensor().shape()),
        weight(DType::kBF16, master.tensor().shape()),
        states{HostTensor(DType::kF32, master.tensor().shape()),
               HostTensor(DType::kF32, master.tensor().shape())} {}

  void step(Stream& stream, const Optimizer& optimizer, const StepInfo& info, bool decay) {
    std::int64_t begin = 0;
    for (const std::int64_t end : {std::int64_t{7}, std::int64_t{50}, master.tensor().numel()}) {
      const auto cut = [&](const HostTensor& t) { return t.tensor().slice(0, begin, end - begin); };
      ParameterSpan span{cut(master), cut(gradient), cut(weight), {}, decay};
      for (std::size_t k = 0; k < optimizer.state_names().size(); ++k) span.states[k] = cut(states[k]);
      optimizer.step(stream, span, info);
      begin = end;
    }
  }

  HostTensor master, gradient, weight;
  std::array<HostTensor, 2> states;
};

// `params` are PyTorch's after each of 16 steps on the recorded gradients.
void expect_follows(Stream& stream, Shards& shards, const Optimizer& optimizer, const ReferenceData& data,
                    const nlohmann::json& json, std::span<const float> params, bool decay) {
  const std::span<const float> gradients = data.floats("gradients");
  const std::size_t length = data.floats("start").size();
  const auto rates = json.at("lr").get<std::vector<double>>();
  ASSERT_EQ(rates.size(), 16U);
  ASSERT_EQ(gradients.size(), 16 * length);
  ASSERT_EQ(params.size(), 16 * length);
  for (std::size_t t = 0; t < rates.size(); ++t) {
    const auto gradient = gradients.subspan(t * length, length);
    std::copy(gradient.begin(), gradient.end(), shards.gradient.tensor().data<float>());
    shards.step(stream, optimizer, {.lr = rates[t], .step = static_cast<std::int64_t>(t + 1)}, decay);
    expect_same_bits(shards.master, params.subspan(t * length, length), "step " + std::to_string(t + 1));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(length); ++i) {
      ASSERT_EQ(shards.weight.tensor().data<BF16>()[i].bits,
                bf16_bits(shards.master.tensor().data<float>()[i]));
    }
  }
}

// All seven rules, decay on and off, and some corners: 16 steps, each bit of every parameter and state.
TEST(OptimizerTest, EqualsPyTorchBitForBit) {
  const ReferenceData data("optimizers.safetensors");
  const nlohmann::json cases = reference_json("optimizers.json").at("cases");
  std::map<std::string, int> seen;
  for (const auto& [name, json] : cases.items()) {
    SCOPED_TRACE(name);
    const auto optimizer = make_optimizer(settings_of(json));
    ++seen[std::string(optimizer->name())];
    on_each_target([&](Stream& stream) {
      Shards shards(data.floats("start"));
      expect_follows(stream, shards, *optimizer, data, json, data.floats(name + ".params"), true);
      std::size_t k = 0;
      for (const std::string_view state : optimizer->state_names()) {
        const std::string key = name + "." + std::string(state);
        expect_same_bits(shards.states[k++], data.floats(key), key);
      }
    });
  }
  for (const std::string& name : optimizer_names()) EXPECT_GE(seen[name], 2) << name;
}

// A span that does not decay follows the reference made without weight decay.
TEST(OptimizerTest, DecaysOnlyWhereAsked) {
  const ReferenceData data("optimizers.safetensors");
  const nlohmann::json cases = reference_json("optimizers.json").at("cases");
  const auto device = make_cpu_device();
  Stream stream(*device, 1);
  for (const std::string& name : optimizer_names()) {
    SCOPED_TRACE(name);
    OptimizerSettings settings = settings_of(cases.at(name));
    settings.weight_decay = 0.1;
    Shards shards(data.floats("start"));
    expect_follows(stream, shards, *make_optimizer(settings), data, cases.at(name),
                   data.floats(name + ".params"), false);
  }
}

TEST(OptimizerTest, ScalesTheGradientFirst) {
  const auto device = make_cpu_device();
  Stream stream(*device, 1);
  for (const std::string& name : optimizer_names()) {
    SCOPED_TRACE(name);
    OptimizerSettings settings;
    settings.name = name;
    const auto optimizer = make_optimizer(settings);
    const auto start = HostTensor::random(DType::kF32, {100}, "start");
    const auto gradient = HostTensor::random(DType::kF32, {100}, "gradient");
    const std::span<const float> values(start.tensor().data<float>(), 100);
    Shards scaled(values);
    Shards direct(values);
    for (std::int64_t i = 0; i < 100; ++i) {
      const float g = gradient.tensor().data<float>()[i];
      scaled.gradient.tensor().data<float>()[i] = g;
      direct.gradient.tensor().data<float>()[i] = g * 0.3F;
    }
    for (const std::int64_t step : {1, 2}) {
      scaled.step(stream, *optimizer, {.lr = 0.1, .step = step, .gradient_scale = 0.3F}, true);
      direct.step(stream, *optimizer, {.lr = 0.1, .step = step}, true);
    }
    EXPECT_EQ(scaled.master.bytes(), direct.master.bytes());
    EXPECT_EQ(scaled.states[0].bytes(), direct.states[0].bytes());
    EXPECT_NE(scaled.master.bytes(), start.bytes());
  }
}

TEST(OptimizerTest, StatesFixTheMemoryOfAParameter) {
  const std::map<std::string, std::vector<std::string_view>> expected = {
      {"sgd", {}},           {"momentum", {"velocity"}},      {"nesterov", {"velocity"}},
      {"adagrad", {"sum"}},  {"rmsprop", {"square_average"}}, {"adam", {"m", "v"}},
      {"adamw", {"m", "v"}},
  };
  ASSERT_EQ(optimizer_names().size(), expected.size());
  for (const std::string& name : optimizer_names()) {
    OptimizerSettings settings;
    settings.name = name;
    if (name == "rmsprop") settings.momentum = 0.0;
    const auto optimizer = make_optimizer(settings);
    EXPECT_EQ(optimizer->name(), name);
    const auto states = optimizer->state_names();
    EXPECT_EQ(std::vector(states.begin(), states.end()), expected.at(name)) << name;
  }
  OptimizerSettings settings;
  settings.name = "rmsprop";
  EXPECT_EQ(make_optimizer(settings)->state_names().size(), 2U);
  settings.name = "nesterov";
  settings.momentum = 0.0;
  EXPECT_EQ(make_optimizer(settings)->state_names().size(), 0U);
}

std::string message_of(const OptimizerSettings& settings) {
  try {
    make_optimizer(settings);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(OptimizerTest, RefusesWhatItDoesNotKnow) {
  const std::string message = message_of({.name = "adamm"});
  EXPECT_NE(message.find("optimizer.name = \"adamm\""), std::string::npos) << message;
  EXPECT_NE(message.find("nearest is \"adam\""), std::string::npos) << message;
  EXPECT_NE(message.find("rmsprop"), std::string::npos) << message;
}

TEST(OptimizerTest, RefusesHyperparametersOutOfRange) {
  EXPECT_NE(message_of({.betas = {0.9, 1.0}}).find("optimizer.betas = 1"), std::string::npos);
  EXPECT_NE(message_of({.betas = {-0.1, 0.9}}).find("optimizer.betas = -0.1"), std::string::npos);
  EXPECT_NE(message_of({.eps = -1e-8}).find("optimizer.eps = -1e-08"), std::string::npos);
  EXPECT_NE(message_of({.weight_decay = std::nan("")}).find("optimizer.weight_decay = nan"), std::string::npos);
  EXPECT_NE(message_of({.momentum = 1.0}).find("optimizer.momentum = 1"), std::string::npos);
  EXPECT_NE(message_of({.alpha = 1.5}).find("optimizer.alpha = 1.5"), std::string::npos);
  EXPECT_EQ(message_of({.betas = {0.0, 0.0}, .eps = 0.0, .weight_decay = 0.0, .momentum = 0.0}), "");
}

}  // namespace
}  // namespace meshtrain
