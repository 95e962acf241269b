#include "train/pool_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "comm/engines.h"
#include "train/memory_plan.h"
#include "train/stages.h"
#include "train/step.h"

namespace meshtrain {
namespace {

std::vector<PipelineAction> one_stage(std::int64_t micro_batches) {
  return find_schedule("1f1b")->order({1, 1, micro_batches}, 0);
}

PoolWalk walk_of_one_stage() {
  return PoolWalk([](PipelineStep, int) { return std::vector<int>{0}; }, 1);
}

// A pool whose state moves on by one in each micro-batch but the last, as far as `before_cycle`, from where on
// it comes back every `cycle`; the last micro-batch fills it by the state. Returns the peak of `all`, and the
// number of micro-batches simulated for it.
std::pair<std::int64_t, std::int64_t> peak_of_cycle(std::int64_t before_cycle, std::int64_t cycle,
                                                    std::int64_t all) {
  PoolWalk walk = walk_of_one_stage();
  const auto kinds_of = [&](std::int64_t steps) { return walk.kinds_of(one_stage(steps), steps); };
  const auto state_at = [&](std::int64_t step) {
    return step < before_cycle ? step : before_cycle + (step - before_cycle) % cycle;
  };
  std::int64_t simulated = 0;
  const auto simulate = [&](std::int64_t steps) {
    simulated += steps;
    const std::vector<int> kinds = kinds_of(steps);
    for (std::int64_t i = 0; i < 2 * steps; ++i) {
      const bool last = i + 1 == 2 * steps;
      walk.learn({i % 2, state_at(i / 2)}, kinds[i], {(i + 1) % 2, last ? 0 : state_at((i + 1) / 2)},
                 last ? 100 + state_at(i / 2) : 1);
    }
    walk.learn({0, 0}, kinds.back(), {0, 0}, 2);
  };
  const std::int64_t few = std::min<std::int64_t>(all, 3);
  simulate(few);
  for (std::int64_t largest = few;;) {
    const PoolWalk::Walk found = walk.walk(kinds_of(all));
    if (!found.missing) return {found.peak, simulated};
    const std::int64_t next = next_steps(walk, *found.missing, few, largest, all, 1, kinds_of);
    simulate(next);
    largest = std::max(largest, next);
  }
}

TEST(PoolWalk, FindsThePeakOfALongStepFromShortOnes) {
  for (const std::int64_t before_cycle : {0, 1, 5, 40}) {
    for (const std::int64_t cycle : {1, 2, 3, 7, 11, 64}) {
      for (const std::int64_t all :
           {1, 2, 3, 4, 5, 30, 97, 839, 840, 841, 842, 843, 844, 845, 846, 847, 5000}) {
        SCOPED_TRACE(testing::Message() << before_cycle << ' ' << cycle << ' ' << all);
        const auto [peak, simulated] = peak_of_cycle(before_cycle, cycle, all);
        const std::int64_t last = all - 1;
        EXPECT_EQ(peak, 100 + (last < before_cycle ? last : before_cycle + (last - before_cycle) % cycle));
        EXPECT_LE(simulated, 6 * (before_cycle + cycle) + 20);
      }
    }
  }
}

TEST(PoolWalk, WhatDiffersAfterEqualStatesIsAnError) {
  PoolWalk walk = walk_of_one_stage();
  walk.learn({0}, 1, {1}, 64);
  walk.learn({0}, 1, {1}, 64);
  EXPECT_THROW(walk.learn({0}, 1, {2}, 64), std::logic_error);
  EXPECT_THROW(walk.learn({0}, 1, {1}, 128), std::logic_error);
}

// Kinds tell the first and the last micro-batch of a chunk, and what is acquired next, apart.
TEST(PoolWalk, KindsAreEqualWhereTheFutureIs) {
  PoolWalk walk([](PipelineStep, int chunk) { return std::vector<int>{chunk}; }, 2);
  using enum PipelineStep;
  const std::vector<int> kinds = walk.kinds_of({{kForward, 0, 0},
                                                {kForward, 0, 1},
                                                {kForward, 0, 2},
                                                {kForward, 0, 3},
                                                {kForward, 1, 0},
                                                {kForward, 0, 4}},
                                               5);
  ASSERT_EQ(kinds.size(), 7U);
  EXPECT_EQ(kinds[1], walk.kinds_of({{kForward, 0, 7}, {kForward, 0, 8}, {kForward, 0, 9}}, 20)[0]);
  for (std::size_t a = 0; a < kinds.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(kinds[a], kinds[b]) << a << ' ' << b;
  }
}

// Against a simulation of the whole step, which takes no short cut.
std::int64_t simulated_peak(const Config& config, int rank) {
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  Assembly assembly(config, *device, *world, std::nullopt);
  const std::vector<std::int32_t> zeros(
      static_cast<std::size_t>(assembly.micro_batch_shape().tokens() * assembly.micro_steps()), 0);
  train_step(assembly, {.tokens = zeros, .targets = zeros}, 0.0, 1);
  return assembly.arena_peaks().transient;
}

// The same of an evaluation.
std::int64_t evaluation_peak(const Config& config, int rank, std::int64_t micro_batches) {
  const std::unique_ptr<World> world = make_sim_world(rank, static_cast<int>(ranks_of(config.mesh)));
  const std::unique_ptr<Device> device = world->make_device();
  Assembly assembly(config, *device, *world, std::nullopt);
  const std::vector<std::int32_t> zeros(
      static_cast<std::size_t>(assembly.micro_batch_shape().tokens() * micro_batches), 0);
  eval_step(assembly, {.tokens = zeros, .targets = zeros});
  return assembly.arena_peaks().transient;
}

Config random_config(std::mt19937& random) {
  const auto one_of = [&](const std::vector<std::int64_t>& values) { return values[random() % values.size()]; };
  Config config;
  const bool gpt2 = random() % 2 == 0;
  config.mesh.dp = one_of({1, 2, 3});
  config.mesh.zero = one_of({2, 3});
  config.mesh.prefetch = one_of({1, 1, 2, 3, 5});
  config.mesh.pp = one_of({1, 1, 2, 3, 4});
  const std::vector<std::string> schedules = {"1f1b", "gpipe", "zb-h1", "interleaved"};
  config.mesh.schedule = schedules[random() % schedules.size()];
  const bool chunks = config.mesh.pp > 1 && config.mesh.schedule == "interleaved";
  config.mesh.virtual_stages = chunks ? one_of({2, 3}) : 1;
  const std::int64_t pieces = config.mesh.pp * config.mesh.virtual_stages;
  const std::int64_t heads = one_of({1, 2, 4});
  config.model = {.arch = gpt2 ? Architecture::kGpt2 : Architecture::kLlama,
                  .layers = std::max<std::int64_t>(pieces, one_of({1, 2, 3, 4, 5, 7})),
                  .hidden = 8 * heads,
                  .heads = heads,
                  .kv_heads = heads,
                  .head_dim = 8,
                  .ffn_hidden = one_of({8, 24, 32, 100}),
                  .vocab = one_of({17, 64, 97, 1000, 3000}),
                  .context = 16,
                  .tie_embeddings = random() % 2 == 0};
  config.data.seq_len = 4;
  config.train.micro_batch = 1;
  config.precision.compute = one_of({0, 1}) == 0 ? DType::kF32 : DType::kBF16;
  config.reduction = random() % 4 == 0 ? "tree" : "fast";
  config.recompute = random() % 3 == 0 ? RecomputePolicy::kFull : RecomputePolicy::kNone;
  config.machine.threads = 1;
  const std::int64_t few = 4 * pieces + 2;
  config.train.global_batch =
      config.mesh.dp * one_of({1, 2, few - 1, few, few + 1, few + 5, 53, 89, 127, few + 101});
  return config;
}

void expect_simulated_peak(const Config& config, int rank) {
  SCOPED_TRACE(testing::Message() << "dp " << config.mesh.dp << " zero " << config.mesh.zero << " pp "
                                  << config.mesh.pp << ' ' << config.mesh.schedule << ' '
                                  << config.mesh.virtual_stages << " prefetch " << config.mesh.prefetch
                                  << " layers " << config.model.layers << " vocab " << config.model.vocab
                                  << " batch " << config.train.global_batch << " rank " << rank);
  const std::int64_t expected = simulated_peak(config, rank);
  EXPECT_EQ(measure_arenas(config, rank).transient, expected);
  EXPECT_GT(expected, 0);
  Config evaluates = config;
  evaluates.data.valid = "valid";
  const std::int64_t with_evaluation = measure_arenas(evaluates, rank).transient;
  for (const std::int64_t micro_batches : {1, 2, 7, 16}) {
    EXPECT_EQ(with_evaluation, std::max(expected, evaluation_peak(config, rank, micro_batches)));
  }
}

TEST(PoolWalk, IsTheWholeStepOnAnyMesh) {
  std::mt19937 random(11);
  for (int round = 0; round < 150; ++round) {
    const Config config = random_config(random);
    expect_simulated_peak(config, static_cast<int>(random() % ranks_of(config.mesh)));
  }
}

TEST(PoolWalk, IsTheWholeStepOfAnyNumberOfMicroBatches) {
  std::mt19937 random(5);
  Config config = random_config(random);
  config.mesh.dp = 2;
  config.mesh.zero = 3;
  config.mesh.pp = 1;
  config.mesh.virtual_stages = 1;
  config.model.layers = 3;
  for (const bool tied : {false, true}) {
    config.model.tie_embeddings = tied;
    for (std::int64_t micro_batches :
         {1, 5, 6, 7, 8, 9, 10, 11, 13, 17, 101, 211, 839, 840, 841, 842, 843, 844, 845, 846, 847}) {
      config.train.global_batch = 2 * micro_batches;
      expect_simulated_peak(config, 1);
    }
  }
}

}  // namespace
}  // namespace meshtrain
