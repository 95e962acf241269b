// Steps of several ranks against one rank, where the data are uneven: ranks whose samples are all masked.
#include <gtest/gtest.h>

#include <memory>

#include "base/philox.h"
#include "comm_ranks.h"
#include "ops/cross_entropy.h"
#include "train/assembly.h"
#include "train/bad_steps.h"
#include "train/memory_plan.h"
#include "train/step.h"
#include "train/whole_state.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kSeq = 12;
constexpr std::int64_t kBatch = 8;

Config config_for(std::int64_t dp, std::int64_t zero, DType compute) {
  Config config;
  config.model = {.arch = Architecture::kGpt2,
                  .layers = 2,
                  .hidden = 24,
                  .heads = 2,
                  .kv_heads = 2,
                  .head_dim = 12,
                  .ffn_hidden = 50,
                  .vocab = 97,
                  .context = 16,
                  .tie_embeddings = true};
  config.data.seq_len = kSeq;
  config.train.micro_batch = 1;
  config.train.global_batch = kBatch;
  config.precision.compute = compute;
  config.precision.loss_scale = 1e9;  // fp16: the first steps overflow and are skipped
  config.optimizer.schedule = "constant";
  config.reduction = "tree";
  config.mesh.dp = dp;
  config.mesh.zero = zero;
  config.machine.threads = 1;
  return config;
}

// What micro-batches 2, 3 and 6 hold is masked: with dp = 8 three ranks have nothing to learn from.
std::vector<std::int32_t> samples(std::int64_t step, bool targets) {
  const RandomStream random(static_cast<std::uint64_t>(step), targets ? "targets" : "tokens");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < kBatch * kSeq; ++i) {
    const std::int64_t sample = i / kSeq;
    const bool masked = targets && (sample == 2 || sample == 3 || sample == 6 || i % 5 == 0);
    ids.push_back(masked ? ops::kIgnoredTarget
                         : static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(i)) % 97));
  }
  return ids;
}

struct Trace {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> skipped;
  std::vector<float> state;
  friend bool operator==(const Trace&, const Trace&) = default;
};

std::vector<std::int32_t> own_samples(const Assembly& assembly, const std::vector<std::int32_t>& all) {
  std::vector<std::int32_t> own;
  for (std::int64_t i = 0; i < assembly.micro_steps(); ++i) {
    const auto begin = all.begin() + assembly.micro_batch_index(i) * kSeq;
    own.insert(own.end(), begin, begin + kSeq);
  }
  return own;
}

void expect_spike(Assembly& assembly, const HostBatch& batch, std::int64_t update) {
  const std::vector<double> norms = {1e-6};
  try {
    train_step(assembly, batch, 1e-3, update, {.norms = norms});
    ADD_FAILURE() << "applied";
  } catch (const BadStepError& error) {
    EXPECT_EQ(error.bad().reason, BadStepReason::kSpike);
    EXPECT_EQ(error.bad().threshold, 2e-6);
  }
}

// Every rank's trace; state on rank 0 only. `spikes`: each step is tried before as one whose norm is a spike.
std::vector<Trace> train(const Config& config, int steps, bool spikes = false) {
  std::vector<Trace> traces(static_cast<std::size_t>(config.mesh.dp));
  const auto failures = testing::run_threads(static_cast<int>(config.mesh.dp), {}, [&](World& world) {
    const std::unique_ptr<Device> device = world.make_device();
    Assembly assembly(config, *device, world, measure_arenas(config, world.rank()));
    assembly.initialize();
    Trace& trace = traces[static_cast<std::size_t>(world.rank())];
    std::int64_t updates = 0;
    for (int step = 0; step < steps; ++step) {
      const auto tokens = own_samples(assembly, samples(step, false));
      const auto targets = own_samples(assembly, samples(step, true));
      const HostBatch batch = {.tokens = tokens, .targets = targets};
      if (spikes) expect_spike(assembly, batch, updates + 1);
      const StepResult result = train_step(assembly, batch, 1e-3, updates + 1);
      updates += result.skipped ? 0 : 1;
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.grad_norm);
      trace.skipped.push_back(result.skipped);
    }
    WholeState state(assembly);
    for (const std::vector<NamedTensor>* tensors : {&state.model(), &state.optimizer()}) {
      for (const NamedTensor& tensor : *tensors) {
        const auto values = tensor.get();
        trace.state.insert(trace.state.end(), values.begin(), values.end());
      }
    }
    return std::vector<std::string>{};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
  return traces;
}

TEST(RankSteps, RanksWithoutTokensCountForNothing) {
  const Trace expected = train(config_for(1, 0, DType::kF32), 3).front();
  for (const std::int64_t dp : {2, 4, 8}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      const std::vector<Trace> traces = train(config_for(dp, zero, DType::kF32), 3);
      EXPECT_TRUE(traces.front() == expected) << dp << ' ' << zero;
      for (const Trace& trace : traces) EXPECT_EQ(trace.losses, expected.losses) << dp << ' ' << zero;
    }
  }
}

TEST(RankSteps, ABadStepLeavesEverythingAsItWas) {
  for (const DType compute : {DType::kF32, DType::kF16}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      Config config = config_for(2, zero, compute);
      config.precision.loss_scale = 1024.0;
      config.precision.loss_scale_window = 2;
      config.train.norm_spike = 2.0;
      config.train.norm_spike_window = 1;
      EXPECT_TRUE(train(config, 5, /*spikes=*/true) == train(config, 5)) << name_of(compute) << ' ' << zero;
    }
  }
}

TEST(RankSteps, OverflowsSkipOnAllRanksTogether) {
  const Trace expected = train(config_for(1, 0, DType::kF16), 24).front();
  EXPECT_TRUE(expected.skipped.front());
  EXPECT_FALSE(expected.skipped.back());
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    const std::vector<Trace> traces = train(config_for(4, zero, DType::kF16), 24);
    for (const Trace& trace : traces) EXPECT_EQ(trace.skipped, expected.skipped) << zero;
    EXPECT_TRUE(traces.front().state == expected.state) << zero;
  }
}

}  // namespace
}  // namespace meshtrain
