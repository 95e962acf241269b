// What docs/numerics.md says of the order of samples and of initial weights, against a program that was written
// from it alone (tests/reference/samples_and_weights.py).
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/philox.h"
#include "data/sampler.h"
#include "data/test_files.h"
#include "device/arena.h"
#include "model/transformer.h"
#include "ops/elementwise.h"
#include "reference_data.h"

namespace meshtrain {
namespace {

nlohmann::json expected(const char* what) {
  return reference_json("samples_and_weights.json").at(what);
}

TEST(SamplesAndWeights, AnEpochVisitsSamplesInTheDocumentedOrder) {
  int seen = 0;
  for (const nlohmann::json& order : expected("orders")) {
    const Permutation permutation(order.at("size").get<std::int64_t>(), order.at("seed").get<std::uint64_t>(),
                                  order.at("epoch").get<std::int64_t>());
    const auto samples = order.at("samples").get<std::vector<std::int64_t>>();
    for (std::size_t i = 0; i < samples.size(); ++i, ++seen) {
      ASSERT_EQ(permutation(static_cast<std::int64_t>(i)), samples[i]) << order.at("size") << " at " << i;
    }
  }
  EXPECT_GT(seen, 200);
}

TEST(SamplesAndWeights, ARunWalksThroughEpochs) {
  for (const nlohmann::json& run : expected("runs")) {
    const auto tokens = run.at("tokens").get<std::size_t>();
    const auto seq_len = run.at("seq_len").get<std::int64_t>();
    std::vector<std::int32_t> ids(tokens);
    for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int32_t>(i);
    const MemoryTokens source("counting", std::move(ids));
    const BatchSampler sampler(source, {.seq_len = seq_len,
                                        .seed = run.at("seed").get<std::uint64_t>(),
                                        .vocab = static_cast<std::int64_t>(tokens)});
    EXPECT_EQ(sampler.samples_per_epoch(), run.at("per_epoch").get<std::int64_t>());
    const auto samples = run.at("samples").get<std::vector<std::int64_t>>();
    const Batch batch = sampler.batch(0, static_cast<std::int64_t>(samples.size()));
    for (std::size_t i = 0; i < samples.size(); ++i) {
      for (std::int64_t t = 0; t < seq_len; ++t) {
        const auto at = i * static_cast<std::size_t>(seq_len) + static_cast<std::size_t>(t);
        ASSERT_EQ(batch.tokens[at], samples[i] * seq_len + t);
        ASSERT_EQ(batch.targets[at], samples[i] * seq_len + t + 1);
      }
    }
  }
}

ModelSpec spec_of(const nlohmann::json& m) {
  return {.arch = m.at("arch") == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama,
          .layers = m.at("layers"),
          .hidden = m.at("hidden"),
          .heads = m.at("heads"),
          .kv_heads = m.at("kv_heads"),
          .head_dim = m.at("head_dim"),
          .ffn_hidden = m.at("ffn_hidden"),
          .vocab = m.at("vocab"),
          .context = m.at("context"),
          .tie_embeddings = m.at("tie_embeddings"),
          .qkv_bias = m.at("qkv_bias"),
          .qk_norm = m.at("qk_norm"),
          .init_std = m.at("init_std")};
}

TEST(SamplesAndWeights, InitialWeightsHaveTheDocumentedBits) {
  for (const nlohmann::json& model : expected("weights")) {
    const std::unique_ptr<Device> device = make_cpu_device();
    Stream stream(*device, 2);
    ParamStore store;
    const ModelSpec spec = spec_of(model.at("model"));
    const Transformer transformer(spec, store, *device,
                                  TransformerOptions{.compute = DType::kF32, .positions = spec.context});
    store.allocate(*device, {});
    store.initialize(stream, model.at("model").at("seed").get<std::uint64_t>());
    std::set<std::string> names;
    for (const Param& param : store.params()) {
      const std::string& name = param.decl.name;
      ASSERT_TRUE(model.at("tensors").contains(name)) << name;
      names.insert(name);
      const nlohmann::json& tensor = model.at("tensors").at(name);
      ASSERT_EQ(tensor.at("shape").size(), static_cast<std::size_t>(param.decl.shape.rank())) << name;
      for (int d = 0; d < param.decl.shape.rank(); ++d) {
        EXPECT_EQ(tensor.at("shape")[static_cast<std::size_t>(d)].get<std::int64_t>(), param.decl.shape[d])
            << name;
      }
      const Tensor values = store.master(param);
      for (std::size_t i = 0; i < tensor.at("first").size(); ++i) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(values.data<float>()[i]),
                  tensor.at("first")[i].get<std::uint32_t>())
            << name;
      }
      const auto hash = XXH3_64bits(values.raw(), static_cast<std::size_t>(values.bytes()));
      EXPECT_EQ(fmt::format("{:016x}", hash), tensor.at("xxh3").get<std::string>()) << name;
    }
    EXPECT_EQ(names.size(), model.at("tensors").size());
  }
}

// Values that double precision cannot round, drawn alone and with their neighbours.
TEST(SamplesAndWeights, HardNormalNumbersAreRoundedRight) {
  const RandomStream random(std::uint64_t{1} << 40U, "test/hard");
  const std::unique_ptr<Device> device = make_cpu_device();
  Stream stream(*device, 1);
  Arena arena(*device, MemoryCategory::kWorkspace, "numbers", 4096);
  const Tensor many = arena.allocate(DType::kF32, {100});
  const nlohmann::json hard = expected("hard");
  ASSERT_GT(hard.size(), 20U);
  for (const nlohmann::json& row : hard) {
    const auto index = row[0].get<std::uint64_t>();
    const auto bits = row[1].get<std::uint32_t>();
    EXPECT_EQ(std::bit_cast<std::uint32_t>(random.normal(index)), bits) << index;
    const std::uint64_t before = std::min<std::uint64_t>(index, 50);
    ops::fill_normal(stream, many, random, static_cast<std::int64_t>(index - before), 0.0F, 1.0F);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(many.data<float>()[before]), bits) << index;
  }
}

}  // namespace
}  // namespace meshtrain
