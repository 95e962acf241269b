#include "plan/plan.h"

#include <gtest/gtest.h>

#include "comm/engines.h"
#include "train/assembly.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace meshtrain {
namespace {

Config small_config(Architecture arch, DType compute, RecomputePolicy recompute, std::int64_t layers) {
  Config config;
  config.mesh.dp = 1;
  config.model = {.arch = arch,
                  .layers = layers,
                  .hidden = 48,
                  .heads = 4,
                  .kv_heads = arch == Architecture::kGpt2 ? 4 : 2,
                  .head_dim = 12,
                  .ffn_hidden = 100,
                  .vocab = 300,
                  .context = 40,
                  .tie_embeddings = arch == Architecture::kGpt2};
  config.data.seq_len = 33;
  config.train.micro_batch = 3;
  config.train.global_batch = 6;
  config.precision.compute = compute;
  config.recompute = recompute;
  config.machine.threads = 2;
  return config;
}

template <class Body>
void for_each_config(const Body& body) {
  for (const Architecture arch : {Architecture::kGpt2, Architecture::kLlama}) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto recompute :
           {RecomputePolicy::kNone, RecomputePolicy::kSelective, RecomputePolicy::kFull}) {
        for (const std::int64_t layers : {1, 3}) body(small_config(arch, compute, recompute, layers));
      }
    }
  }
}

// A real step fills the real arenas to the last planned byte, and an evaluation no further.
TEST(Plan, EqualsWhatARealStepUses) {
  for_each_config([](const Config& config) {
    const Plan plan = make_plan(config);
    const std::unique_ptr<Device> device = make_cpu_device();
    const std::unique_ptr<World> world = make_single_world();
    Assembly assembly(config, *device, *world, measure_arenas(config));
    assembly.initialize();
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(6 * 33), 1);
    train_step(assembly, {.tokens = tokens, .targets = tokens}, 1e-3, 1);
    EXPECT_EQ(assembly.peak_memory(), plan.rank(0).memory);
    eval_step(assembly,
              {.tokens = std::span(tokens).first(3 * 33), .targets = std::span(tokens).first(3 * 33)});
    EXPECT_EQ(assembly.peak_memory(), plan.rank(0).memory);
    std::int64_t parameters = 0;
    for (const LayerProfile& layer : plan.layers) parameters += layer.parameters;
    EXPECT_EQ(parameters, plan.parameters);
    EXPECT_EQ(plan.parameters, parameter_count(config.model));
  });
}

TEST(Plan, PublishedShapesHaveTheirPublishedSizes) {
  for (const std::string& name : preset_names()) {
    Config config;
    config.mesh.dp = 1;
    config.model = preset(name);
    if (config.model.vocab == 0) continue;
    config.data.seq_len = 64;
    config.train.micro_batch = config.train.global_batch = 1;
    EXPECT_EQ(make_plan(config).parameters, parameter_count(config.model)) << name;
  }
}

// Mixed precision keeps 2 bytes of weight, 4 of gradient, 4 of master and 8 of AdamW state a parameter.
TEST(Plan, BytesAParameter) {
  Config config;
  config.mesh.dp = 1;
  config.model = preset("llama-3-8b");
  config.data.seq_len = 64;
  config.train.micro_batch = config.train.global_batch = 1;
  const MemoryUse use = make_plan(config).rank(0).memory;
  constexpr std::int64_t kParameters = 8'030'261'248;
  EXPECT_EQ(use[MemoryCategory::kParameters], 2 * kParameters);
  EXPECT_EQ(use[MemoryCategory::kGradients], 4 * kParameters);
  EXPECT_EQ(use[MemoryCategory::kMaster], 4 * kParameters);
  EXPECT_EQ(use[MemoryCategory::kOptimizer], 8 * kParameters);
}

// Published, with 16-bit gradients: 16 bytes a parameter, 112 GB for 7e9 and 1120 GB for 70e9, of which ZeRO 3
// over 64 ranks leaves 17.5 GB a rank.
TEST(Plan, PublishedBytesOfLargeModels) {
  Config config;
  config.model = preset("llama-3-70b");
  config.precision.gradients = DType::kBF16;
  config.data.seq_len = 64;
  config.train.micro_batch = 1;
  config.train.global_batch = 64;
  config.mesh.dp = 64;
  const Plan plan = make_plan(config);
  const auto of_parameter = [&](std::size_t zero) {
    return static_cast<double>(plan.zero_stages.at(zero).states) / static_cast<double>(plan.parameters);
  };
  EXPECT_NEAR(7e9 * of_parameter(0), 112e9, 1e5);
  EXPECT_NEAR(70e9 * of_parameter(0), 1120e9, 1e6);
  EXPECT_NEAR(70e9 * of_parameter(3), 17.5e9, 1e5);
}

// Of what its data-parallel ranks share out, each copies its part: masters, m and v.
TEST(Plan, AnAsynchronousCheckpointIsCopiedIntoPlannedMemory) {
  Config config;
  config.model = preset("llama-tiny");
  config.model.vocab = 256;
  config.data.seq_len = 64;
  config.train.micro_batch = 1;
  config.train.global_batch = 4;
  for (const std::int64_t dp : {1, 4}) {
    for (const std::int64_t zero : {0, 3}) {
      config.mesh.dp = dp;
      config.mesh.zero = dp == 1 ? 0 : zero;
      config.checkpoint.async = false;
      const Plan without = make_plan(config);
      config.checkpoint.async = true;
      const Plan with = make_plan(config);
      EXPECT_EQ(without.checkpoint_copy, 0);
      EXPECT_EQ(with.checkpoint_copy, parameter_count(config.model) * 12 / dp);
      EXPECT_EQ(with.rank(0).memory.total() - without.rank(0).memory.total(), with.checkpoint_copy);
      EXPECT_EQ(
          with.rank(0).memory[MemoryCategory::kWorkspace] - without.rank(0).memory[MemoryCategory::kWorkspace],
          with.checkpoint_copy);
    }
  }
}

}  // namespace
}  // namespace meshtrain
