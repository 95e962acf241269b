// Whole models against PyTorch: logits, losses, every gradient, and ten AdamW steps, from files that
// tests/reference/models.py recorded.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/engines.h"
#include "ops/elementwise.h"
#include "ops/transfer.h"
#include "reference_data.h"
#include "train/assembly.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace meshtrain {
namespace {

struct Reference {
  explicit Reference(const std::string& model)
      : json(reference_json("model_" + model + ".json")), data("model_" + model + ".safetensors") {}
  nlohmann::json json;
  ReferenceData data;
};

Config config_of(const nlohmann::json& json, DType compute, RecomputePolicy recompute,
                 std::int64_t micro_batch) {
  const nlohmann::json& s = json.at("spec");
  Config config;
  config.mesh.dp = 1;
  config.model = {.arch = s.at("arch") == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama,
                  .layers = s.at("layers"),
                  .hidden = s.at("hidden"),
                  .heads = s.at("heads"),
                  .kv_heads = s.at("kv_heads"),
                  .head_dim = s.at("head_dim"),
                  .ffn_hidden = s.at("ffn_hidden"),
                  .vocab = s.at("vocab"),
                  .context = s.at("context"),
                  .tie_embeddings = s.at("tie_embeddings"),
                  .norm_eps = s.at("norm_eps"),
                  .rope_theta = s.at("rope_theta"),
                  .qkv_bias = s.at("qkv_bias"),
                  .qk_norm = s.at("qk_norm")};
  if (const nlohmann::json& scaling = s.at("rope_scaling"); !scaling.is_null()) {
    config.model.rope_scaling = {.factor = scaling.at("factor"),
                                 .low_freq_factor = scaling.at("low_freq_factor"),
                                 .high_freq_factor = scaling.at("high_freq_factor"),
                                 .original_context = scaling.at("original_context")};
  }
  config.data.seq_len = s.at("seq");
  config.train.global_batch = s.at("batch");
  config.train.micro_batch = micro_batch;
  config.train.steps = 10;
  config.precision.compute = compute;
  config.recompute = recompute;
  const nlohmann::json& optimizer = json.at("optimizer");
  config.optimizer.lr = optimizer.at("lr");
  config.optimizer.eps = optimizer.at("eps");
  config.optimizer.weight_decay = optimizer.at("weight_decay");
  config.optimizer.schedule = "constant";
  config.train.grad_clip = optimizer.at("grad_clip");
  config.machine.threads = 2;
  return config;
}

struct Trained {
  Trained(const Reference& reference, DType compute = DType::kF32,
          RecomputePolicy recompute = RecomputePolicy::kNone, std::int64_t micro_batch = 3)
      : config(config_of(reference.json, compute, recompute, micro_batch)),
        device(make_cpu_device()),
        world(make_single_world()),
        assembly(config, *device, *world, measure_arenas(config)) {
    assembly.initialize();
    for (const Param& param : assembly.params.params()) {
      const auto values = reference.data.floats("param." + param.decl.name);
      EXPECT_EQ(static_cast<std::int64_t>(values.size()), param.numel()) << param.decl.name;
      ops::copy_from_host(assembly.stream, values.data(), assembly.params.master(param));
    }
    assembly.params.refresh_weights(assembly.stream);
  }
  Config config;
  std::unique_ptr<Device> device;
  std::unique_ptr<World> world;
  Assembly assembly;
};

double largest(std::span<const float> values) {
  double result = 0.0;
  for (const float v : values) result = std::max(result, std::abs(static_cast<double>(v)));
  return result;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double result = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    result = std::max(result, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return result;
}

std::span<const float> values_of(const Tensor& tensor) {
  return {tensor.data<float>(), static_cast<std::size_t>(tensor.numel())};
}

StepResult gradients_only(Trained& run, const Reference& reference) {
  return train_step(run.assembly,
                    {.tokens = reference.data.ints("tokens"), .targets = reference.data.ints("targets")}, 0.0,
                    1);
}

// A gradient's scale: its largest element, or for gradients that are zero but for rounding (gpt2's key
// bias) that of the layer it belongs to.
double gradient_scale(const Reference& reference, const std::string& name) {
  const double own = reference.json.at("gradients").at(name).at("largest");
  return std::max(own, 1e-3);
}

class ReferenceModel : public testing::TestWithParam<const char*> {};

TEST_P(ReferenceModel, LogitsEqualPyTorchs) {
  const Reference reference(GetParam());
  Trained run(reference);
  const auto expected = reference.data.floats("logits");
  const std::unique_ptr<Device> scratch = make_cpu_device();
  const Buffer buffer =
      scratch->allocate(static_cast<std::int64_t>(expected.size() * sizeof(float)), MemoryCategory::kWorkspace);
  const std::int64_t tokens = run.assembly.micro_batch_shape().tokens();
  const Tensor logits(buffer.data(), DType::kF32, {tokens, run.config.model.vocab});
  ops::copy_from_host(run.assembly.stream, reference.data.ints("tokens").data(), run.assembly.tokens);
  Context ctx = run.assembly.evaluation_context();
  run.assembly.model->logits(ctx, run.assembly.micro_batch_shape(), run.assembly.tokens, logits);
  EXPECT_LE(largest_difference(values_of(logits), expected), 1e-5 * largest(expected));
}

TEST_P(ReferenceModel, LossAndEveryGradientEqualPyTorchs) {
  const Reference reference(GetParam());
  Trained run(reference);
  const StepResult result = gradients_only(run, reference);
  EXPECT_EQ(result.unmasked_tokens, reference.json.at("unmasked").get<std::int64_t>());
  EXPECT_NEAR(result.loss, reference.json.at("loss").get<double>(), 1e-5 * result.loss);
  for (const Param& param : run.assembly.params.params()) {
    const std::string& name = param.decl.name;
    EXPECT_LE(largest_difference(values_of(run.assembly.params.gradient(param)),
                                 reference.data.floats("grad." + name)),
              1e-5 * gradient_scale(reference, name))
        << name;
  }
}

TEST_P(ReferenceModel, TenAdamWStepsEqualPyTorchs) {
  const Reference reference(GetParam());
  Trained run(reference);
  const auto tokens = reference.data.ints("step.tokens");
  const auto targets = reference.data.ints("step.targets");
  const auto count = static_cast<std::size_t>(run.assembly.micro_batch_shape().tokens());
  for (std::size_t step = 0; step < 10; ++step) {
    const StepResult result = train_step(
        run.assembly,
        {.tokens = tokens.subspan(step * count, count), .targets = targets.subspan(step * count, count)},
        run.config.optimizer.lr, static_cast<std::int64_t>(step) + 1);
    const nlohmann::json& json = reference.json;
    const double loss = json.at("losses").at(step);
    const double norm = json.at("grad_norms").at(step);
    EXPECT_NEAR(result.loss, loss, 1e-5 * loss) << "step " << step + 1;
    EXPECT_NEAR(result.grad_norm, norm, 1e-4 * norm) << "step " << step + 1;
  }
}

// bf16 keeps 8 bits: rounding an element errs by at most 2^-8 relative, and by less than u = 2^-9 in the root
// mean square. The loss sees the logits through about 7 roundings a layer on the residual path (norm,
// projections, activation, sums: two layers and the head here, n = 20), which add like a random walk:
// sqrt(n)·u of the logits' size; the gradients pass as many again. 4 standard deviations bound both.
TEST_P(ReferenceModel, Bf16StaysWithinItsRounding) {
  const Reference reference(GetParam());
  Trained run(reference, DType::kBF16);
  const StepResult result = gradients_only(run, reference);
  const double u = 0x1p-9;
  const double logit_error = 4.0 * std::sqrt(20.0) * u * largest(reference.data.floats("logits"));
  EXPECT_NEAR(result.loss, reference.json.at("loss").get<double>(), logit_error);
  for (const Param& param : run.assembly.params.params()) {
    const std::string& name = param.decl.name;
    const auto got = values_of(run.assembly.params.gradient(param));
    const auto expected = reference.data.floats("grad." + name);
    double error = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    // In the mean square over a tensor; keys that barely matter carry the noise of the scores.
    EXPECT_LE(std::sqrt(error), 4.0 * std::sqrt(40.0) * u * std::sqrt(size) + 1e-3) << name;
  }
}

TEST_P(ReferenceModel, RecomputeChangesNoBit) {
  const Reference reference(GetParam());
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    Trained plain(reference, compute);
    const StepResult expected = gradients_only(plain, reference);
    for (const RecomputePolicy policy : {RecomputePolicy::kSelective, RecomputePolicy::kFull}) {
      Trained run(reference, compute, policy);
      const StepResult result = gradients_only(run, reference);
      EXPECT_EQ(result.loss, expected.loss);
      EXPECT_EQ(result.grad_norm, expected.grad_norm);
      EXPECT_LT(run.assembly.peak_memory()[MemoryCategory::kActivations],
                plain.assembly.peak_memory()[MemoryCategory::kActivations]);
      for (const Param& param : run.assembly.params.params()) {
        EXPECT_EQ(largest_difference(values_of(run.assembly.params.gradient(param)),
                                     values_of(plain.assembly.params.gradient(param))),
                  0.0)
            << param.decl.name;
      }
    }
  }
}

// Accumulating micro-batches gives the gradient of the whole batch: token losses are weighed by the
// global batch's count, although the micro-batches differ in their number of masked targets.
TEST_P(ReferenceModel, MicroBatchesAddUpToTheBatch) {
  const Reference reference(GetParam());
  Trained run(reference, DType::kF32, RecomputePolicy::kNone, 1);
  const StepResult result = gradients_only(run, reference);
  EXPECT_NEAR(result.loss, reference.json.at("loss").get<double>(), 1e-5 * result.loss);
  for (const Param& param : run.assembly.params.params()) {
    const std::string& name = param.decl.name;
    EXPECT_LE(largest_difference(values_of(run.assembly.params.gradient(param)),
                                 reference.data.floats("grad." + name)),
              1e-5 * gradient_scale(reference, name))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReferenceModel, testing::Values("gpt2", "llama", "llama_qwen"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace meshtrain
