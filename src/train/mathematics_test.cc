// What mathematics says about a model's loss, whatever its weights.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "comm/engines.h"
#include "ops/elementwise.h"
#include "train/assembly.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace meshtrain {
namespace {

Config small_config(Architecture arch, std::int64_t vocab, DType compute) {
  Config config;
  config.mesh.dp = 1;
  config.model = {.arch = arch,
                  .layers = 1,
                  .hidden = 32,
                  .heads = 2,
                  .kv_heads = arch == Architecture::kGpt2 ? 2 : 1,
                  .head_dim = 16,
                  .ffn_hidden = 64,
                  .vocab = vocab,
                  .context = 64,
                  .tie_embeddings = arch == Architecture::kGpt2};
  config.data.seq_len = 64;
  config.train.micro_batch = 8;
  config.train.global_batch = 16;
  config.precision.compute = compute;
  config.machine.threads = 2;
  return config;
}

// All weights zero: every token is equally likely, and the loss is ln(V).
TEST(Mathematics, ZeroWeightsLoseLnOfTheVocabulary) {
  for (const Architecture arch : {Architecture::kGpt2, Architecture::kLlama}) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      Config config = small_config(arch, 50257, compute);
      config.data.seq_len = 16;
      config.train.micro_batch = config.train.global_batch = 2;
      const std::unique_ptr<Device> device = make_cpu_device();
      const std::unique_ptr<World> world = make_single_world();
      Assembly assembly(config, *device, *world, measure_arenas(config));
      // Without initialize(): blocks of memory start as zeros.
      std::vector<std::int32_t> tokens(32);
      std::iota(tokens.begin(), tokens.end(), 50225);
      const std::vector<EvalResult> results = eval_step(assembly, {.tokens = tokens, .targets = tokens});
      ASSERT_EQ(results.size(), 2U);
      for (const EvalResult& sequence : results) {
        EXPECT_NEAR(sequence.loss_sum / 16.0, 10.824905, 2e-6) << name_of(arch) << ' ' << name_of(compute);
      }
    }
  }
}

TEST(Mathematics, AFullyMaskedBatchLosesNothingAndChangesNothing) {
  for (const Architecture arch : {Architecture::kGpt2, Architecture::kLlama}) {
    Config config = small_config(arch, 97, DType::kF32);
    config.optimizer.weight_decay = 0.0;
    const std::unique_ptr<Device> device = make_cpu_device();
    const std::unique_ptr<World> world = make_single_world();
    Assembly assembly(config, *device, *world, measure_arenas(config));
    assembly.initialize();
    const std::vector<std::int32_t> tokens(16 * 64, 5);
    const std::vector<std::int32_t> masked(16 * 64, -1);
    const StepResult result = train_step(assembly, {.tokens = tokens, .targets = masked}, 1e-3, 1);
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_EQ(result.grad_norm, 0.0);
    EXPECT_EQ(result.unmasked_tokens, 0);
  }
}

// A chain of `states` states; row i of `transitions` holds the cumulative probabilities after state i.
class MarkovChain {
 public:
  explicit MarkovChain(std::int64_t states) : states_(states), transitions_(size(states * states)) {
    const RandomStream random(7, "test/markov");
    for (std::int64_t i = 0; i < states; ++i) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < states; ++j) {
        at(i, j) = std::exp(1.5 * random.normal(static_cast<std::uint64_t>(i * states + j)));
        sum += at(i, j);
      }
      for (std::int64_t j = 0; j < states; ++j) at(i, j) /= sum;
    }
  }

  // Entropy rate in nats: the rows' entropies weighed by the stationary distribution.
  double entropy() {
    std::vector<double> stationary(size(states_), 1.0 / static_cast<double>(states_));
    for (int round = 0; round < 1000; ++round) {
      std::vector<double> next(size(states_), 0.0);
      for (std::int64_t i = 0; i < states_; ++i) {
        for (std::int64_t j = 0; j < states_; ++j) next[size(j)] += stationary[size(i)] * at(i, j);
      }
      stationary = next;
    }
    double result = 0.0;
    for (std::int64_t i = 0; i < states_; ++i) {
      for (std::int64_t j = 0; j < states_; ++j) result -= stationary[size(i)] * at(i, j) * std::log(at(i, j));
    }
    return result;
  }

  std::vector<std::int32_t> walk(std::int64_t length, std::uint64_t seed) {
    const RandomStream random(seed, "test/walk");
    std::vector<std::int32_t> states;
    std::int64_t state = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      double left = random.uniform(static_cast<std::uint64_t>(t));
      std::int64_t next = 0;
      while (next + 1 < states_ && left >= at(state, next)) left -= at(state, next++);
      states.push_back(static_cast<std::int32_t>(next));
      state = next;
    }
    return states;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  double& at(std::int64_t i, std::int64_t j) { return transitions_[size(i * states_ + j)]; }

  std::int64_t states_;
  std::vector<double> transitions_;
};

TEST(Mathematics, AMarkovChainIsLearnedToItsEntropy) {
  MarkovChain chain(12);
  const double entropy = chain.entropy();
  ASSERT_LT(entropy, 0.9 * std::log(12.0));  // there is something to learn
  for (const Architecture arch : {Architecture::kGpt2, Architecture::kLlama}) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      Config config = small_config(arch, 12, compute);
      config.train.steps = 150;
      config.optimizer = {.lr = 1e-2, .schedule = "cosine", .warmup = 10};
      const std::unique_ptr<Device> device = make_cpu_device();
      const std::unique_ptr<World> world = make_single_world();
      Assembly assembly(config, *device, *world, measure_arenas(config));
      assembly.initialize();
      const std::size_t batch = 16 * 64;
      const auto run = [&](std::uint64_t seed, auto&& use) {
        const std::vector<std::int32_t> states = chain.walk(static_cast<std::int64_t>(batch) + 1, seed);
        use(std::span(states).first(batch), std::span(states).last(batch));
      };
      std::int64_t updates = 0;
      for (std::int64_t step = 1; step <= config.train.steps; ++step) {
        run(static_cast<std::uint64_t>(step), [&](auto tokens, auto targets) {
          const double lr = learning_rate(assembly.schedule, step);
          updates +=
              train_step(assembly, {.tokens = tokens, .targets = targets}, lr, updates + 1).skipped ? 0 : 1;
        });
      }
      EvalResult total;
      for (std::uint64_t seed = 1000; seed < 1040; ++seed) {
        run(seed, [&](auto tokens, auto targets) {
          for (const EvalResult& sequence :
               eval_step(assembly, {.tokens = tokens.first(8 * 64), .targets = targets.first(8 * 64)})) {
            total.loss_sum += sequence.loss_sum;
            total.unmasked_tokens += sequence.unmasked_tokens;
          }
        });
      }
      const double loss = total.loss_sum / static_cast<double>(total.unmasked_tokens);
      EXPECT_NEAR(loss, entropy, 0.02 * entropy) << name_of(arch) << ' ' << name_of(compute);
    }
  }
}

}  // namespace
}  // namespace meshtrain
