// Steps of whole assemblies on meshes of several ranks: what they hold, what they agree on, how they end.
#include "train/assembly.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "base/philox.h"
#include "comm_ranks.h"
#include "ops/cross_entropy.h"
#include "train/memory_plan.h"
#include "train/step.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kSeq = 12;
constexpr std::int64_t kBatch = 8;

struct Mesh {
  std::int64_t dp = 1;
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t zero = 0;
  std::string schedule = "1f1b";
  std::int64_t chunks = 1;
};

std::string to_string(const Mesh& mesh) {
  return fmt::format("dp {} tp {} pp {} zero {} {} {}", mesh.dp, mesh.tp, mesh.pp, mesh.zero, mesh.schedule,
                     mesh.chunks);
}

// gpt2's table is tied; of llama's two heads of keys and values four tensor-parallel ranks have two copies
// each.
Config config_for(Architecture arch, const Mesh& mesh, DType compute = DType::kF32) {
  const bool gpt2 = arch == Architecture::kGpt2;
  Config config;
  config.model = {.arch = arch,
                  .layers = 4,
                  .hidden = 24,
                  .heads = 4,
                  .kv_heads = gpt2 ? 4 : 2,
                  .head_dim = 6,
                  .ffn_hidden = 52,
                  .vocab = 97,
                  .context = 16,
                  .tie_embeddings = gpt2};
  config.data.seq_len = kSeq;
  config.data.valid = "valid";  // some evaluate
  config.train.micro_batch = 1;
  config.train.global_batch = kBatch;
  config.train.grad_clip = 1.0;
  config.precision.compute = compute;
  config.optimizer.schedule = "constant";
  config.mesh.dp = mesh.dp;
  config.mesh.tp = mesh.tp;
  config.mesh.pp = mesh.pp;
  config.mesh.zero = mesh.zero;
  config.mesh.schedule = mesh.schedule;
  config.mesh.virtual_stages = mesh.chunks;
  config.machine.threads = 1;
  return config;
}

// What this rank sees of a step's global batch.
struct OwnBatch {
  OwnBatch(const Assembly& assembly, int step, bool masked = false) {
    const RandomStream random(static_cast<std::uint64_t>(step), "samples");
    for (std::int64_t i = 0; i < assembly.micro_steps(); ++i) {
      for (std::int64_t at = assembly.micro_batch_index(i) * kSeq, j = 0; j < kSeq; ++j, ++at) {
        const auto element = static_cast<std::uint64_t>(2 * at);
        tokens.push_back(static_cast<std::int32_t>(random.bits(element) % 97));
        const bool ignored = masked || at % 5 == 0;
        targets.push_back(ignored ? ops::kIgnoredTarget
                                  : static_cast<std::int32_t>(random.bits(element + 1) % 97));
      }
    }
  }
  HostBatch view() const { return {.tokens = tokens, .targets = targets}; }

  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

using Body = std::function<void(Assembly&, std::vector<std::string>& failures)>;

// Runs `body` on every rank. Returns what each failed with.
std::vector<std::vector<std::string>> failures_on(const Config& config, const Body& body) {
  const auto ranks = static_cast<int>(ranks_of(config.mesh));
  return testing::run_threads(ranks, {}, [&](World& world) {
    const std::unique_ptr<Device> device = world.make_device();
    Assembly assembly(config, *device, world, measure_arenas(config, world.rank()));
    assembly.initialize();
    std::vector<std::string> failures;
    body(assembly, failures);
    assembly.settle();
    assembly.groups.control->barrier();
    return failures;
  });
}

void on_mesh(const Config& config, const Body& body) {
  for (const auto& of_rank : failures_on(config, body)) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
}

std::vector<StepResult> steps_on(const Config& config, int steps, bool evaluates_between = false) {
  std::vector<std::vector<StepResult>> results(static_cast<std::size_t>(ranks_of(config.mesh)));
  on_mesh(config, [&](Assembly& assembly, std::vector<std::string>&) {
    std::vector<StepResult>& own = results[static_cast<std::size_t>(assembly.groups.control->rank())];
    std::int64_t updates = 0;
    for (int step = 0; step < steps; ++step) {
      own.push_back(train_step(assembly, OwnBatch(assembly, step).view(), 1e-3, updates + 1));
      updates += own.back().skipped ? 0 : 1;
      if (evaluates_between) eval_step(assembly, OwnBatch(assembly, 100 + step).view());
    }
  });
  for (const auto& of_rank : results) {
    for (int i = 0; i < steps; ++i) {
      const auto step = static_cast<std::size_t>(i);
      const StepResult& first = results.front()[step];
      EXPECT_EQ(of_rank[step].loss, first.loss);
      // NaN where fp16 overflows.
      EXPECT_EQ(std::bit_cast<std::uint64_t>(of_rank[step].grad_norm),
                std::bit_cast<std::uint64_t>(first.grad_norm));
      EXPECT_EQ(of_rank[step].skipped, first.skipped);
      EXPECT_EQ(of_rank[step].unmasked_tokens, first.unmasked_tokens);
    }
  }
  return results.front();
}

// Huang et al. 2019 keep all micro-batches; Narayanan et al. 2021, section 2.2, keep as many as stages follow.
TEST(Assembly, HasASlotForEveryMicroBatchThatIsAlive) {
  for (const Mesh& mesh : {Mesh{.pp = 3, .schedule = "gpipe"}, Mesh{.pp = 6, .schedule = "gpipe"},
                           Mesh{.pp = 3, .schedule = "1f1b"}, Mesh{.pp = 3, .schedule = "zb-h1"},
                           Mesh{.tp = 2, .pp = 2, .schedule = "interleaved", .chunks = 2}}) {
    SCOPED_TRACE(to_string(mesh));
    const Config config = config_for(Architecture::kLlama, mesh);
    on_mesh(config, [&](Assembly& assembly, std::vector<std::string>& failures) {
      const std::int64_t stage = assembly.groups.place("pp");
      const ArenaSizes sizes = measure_arenas(config, assembly.groups.control->rank());
      // Of blocks: with one piece a stage, and two of a block each.
      const std::int64_t slots = assembly.slot_counts().blocks;
      const std::int64_t published = mesh.schedule == "gpipe"   ? kBatch
                                     : mesh.schedule == "1f1b"  ? std::min(kBatch, mesh.pp - stage)
                                     : mesh.schedule == "zb-h1" ? std::min(kBatch, mesh.pp)
                                                                : 2 * (mesh.pp - 1 - stage) + mesh.pp + 1;
      if (assembly.pieces().front().blocks > 0 && slots != published)
        failures.push_back(fmt::format("{} slots on stage {}", slots, stage));
      const std::int64_t activations = sizes.recomputed + sizes.activations.of_all(assembly.slot_counts());
      if (assembly.planned_memory()[MemoryCategory::kActivations] != activations)
        failures.emplace_back("bytes of activations");
      // Arenas are full to the last byte.
      train_step(assembly, OwnBatch(assembly, 0).view(), 1e-3, 1);
      eval_step(assembly, OwnBatch(assembly, 1).view());
      for (std::size_t category = 0; category < kMemoryCategories; ++category) {
        const auto c = static_cast<MemoryCategory>(category);
        if (assembly.peak_memory()[c] != assembly.planned_memory()[c])
          failures.push_back(fmt::format("{}: {} bytes used of {} planned", name_of(c),
                                         assembly.peak_memory()[c], assembly.planned_memory()[c]));
      }
    });
  }
}

// The norm counts the tied table once and every copy once; stages change no bit, tensor-parallel ranks rounding
// alone.
TEST(Assembly, LossesAndNormsAreTheDenseOnesOnAllRanks) {
  for (const Architecture arch : {Architecture::kGpt2, Architecture::kLlama}) {
    const std::vector<StepResult> dense = steps_on(config_for(arch, {}), 3);
    EXPECT_GT(dense.front().unmasked_tokens, 0);
    for (const Mesh& mesh :
         {Mesh{.pp = 2}, Mesh{.pp = 6}, Mesh{.pp = 3, .schedule = "zb-h1"}, Mesh{.pp = 6, .schedule = "gpipe"},
          Mesh{.pp = 2, .zero = 3, .schedule = "interleaved", .chunks = 2}, Mesh{.tp = 2}, Mesh{.tp = 4},
          Mesh{.tp = 4, .pp = 2}, Mesh{.dp = 2, .tp = 2, .pp = 2, .zero = 1}}) {
      SCOPED_TRACE(std::string(name_of(arch)) + " " + to_string(mesh));
      const std::vector<StepResult> found = steps_on(config_for(arch, mesh), 3, /*evaluates_between=*/true);
      for (std::size_t step = 0; step < found.size(); ++step) {
        EXPECT_EQ(found[step].unmasked_tokens, dense[step].unmasked_tokens);
        if (mesh.tp == 1 && mesh.dp == 1 && mesh.zero == 0) {
          EXPECT_EQ(found[step].loss, dense[step].loss);
          EXPECT_EQ(found[step].grad_norm, dense[step].grad_norm);
        } else {
          EXPECT_NEAR(found[step].loss, dense[step].loss, 1e-5 * dense[step].loss);
          EXPECT_NEAR(found[step].grad_norm, dense[step].grad_norm, 1e-5 * dense[step].grad_norm);
        }
      }
    }
  }
}

TEST(Assembly, EvaluationFindsTheDenseLossesOnTheLastStage) {
  const auto losses_on = [](const Mesh& mesh) {
    std::vector<double> losses;
    on_mesh(config_for(Architecture::kGpt2, mesh), [&](Assembly& assembly, std::vector<std::string>& failures) {
      const std::vector<EvalResult> results = eval_step(assembly, OwnBatch(assembly, 7).view());
      if (results.size() != kBatch) failures.emplace_back("number of results");
      for (const EvalResult& result : results) {
        if (result.unmasked_tokens <= 0) failures.emplace_back("no tokens");
        if (assembly.model->has_head()) losses.push_back(result.loss_sum);
        if (!assembly.model->has_head() && result.loss_sum != 0.0)
          failures.emplace_back("a loss without a head");
      }
    });
    return losses;
  };
  const std::vector<double> dense = losses_on({});
  ASSERT_EQ(dense.size(), static_cast<std::size_t>(kBatch));
  for (const Mesh& mesh : {Mesh{.pp = 2}, Mesh{.pp = 6, .zero = 3}, Mesh{.pp = 3, .schedule = "zb-h1"},
                           Mesh{.pp = 2, .schedule = "interleaved", .chunks = 2}}) {
    EXPECT_EQ(losses_on(mesh), dense) << to_string(mesh);
  }
}

// More micro-batches at once than a step has: none needs more of the pool of whole units for those beside it.
TEST(Assembly, EvaluatesAnyNumberOfMicroBatches) {
  for (const Mesh& mesh : {Mesh{.pp = 3, .zero = 3, .schedule = "zb-h1"}, Mesh{.dp = 2, .pp = 2, .zero = 3},
                           Mesh{.pp = 2, .zero = 3, .schedule = "interleaved", .chunks = 2}}) {
    for (const std::int64_t vocab : {97, 262}) {
      for (const std::int64_t ffn_hidden : {8, 100}) {
        SCOPED_TRACE(to_string(mesh) + fmt::format(" vocab {} ffn {}", vocab, ffn_hidden));
        Config config = config_for(Architecture::kLlama, mesh);
        config.model.tie_embeddings = true;
        config.model.vocab = vocab;
        config.model.ffn_hidden = ffn_hidden;
        config.train.global_batch = mesh.dp;
        on_mesh(config, [&](Assembly& assembly, std::vector<std::string>& failures) {
          train_step(assembly, OwnBatch(assembly, 0).view(), 1e-3, 1);
          const std::vector<std::int32_t> tokens(static_cast<std::size_t>(13 * kSeq), 5);
          for (const std::size_t count : {1U, 2U, 5U, 13U}) {
            const auto some = std::span(tokens).first(count * kSeq);
            eval_step(assembly, {.tokens = some, .targets = some});
          }
          if (assembly.peak_memory() != assembly.planned_memory()) failures.emplace_back("not as planned");
        });
      }
    }
  }
}

// Message buffers alone: what the last stage sends of the table lies where activations did, which have as much
// memory as it takes.
TEST(Assembly, ATiedTableNeedsNoMemoryBesideActivations) {
  for (const std::int64_t vocab : {97, 5000}) {
    for (const std::int64_t zero : {0, 1}) {
      SCOPED_TRACE(fmt::format("vocab {} zero {}", vocab, zero));
      Config config = config_for(Architecture::kGpt2, {.dp = 2, .pp = 2, .zero = zero});
      config.model.vocab = vocab;
      on_mesh(config, [&](Assembly& assembly, std::vector<std::string>& failures) {
        const bool first = assembly.groups.place("pp") == 0;
        const std::int64_t message = kSeq * config.model.hidden * 4;
        const MemoryUse planned = assembly.planned_memory();
        if (planned[MemoryCategory::kCommunication] != 4 * message) failures.emplace_back("communication");
        const std::int64_t table = assembly.params.units().front().elements * 4;
        const SlotBytes bytes = measure_arenas(config, assembly.groups.control->rank()).activations;
        const std::int64_t slots = bytes.of_all(assembly.slot_counts());
        const std::int64_t expected = first ? std::max(slots, table) : slots;
        if (planned[MemoryCategory::kActivations] != expected) failures.emplace_back("activations");
        train_step(assembly, OwnBatch(assembly, 0).view(), 1e-3, 1);
        if (assembly.peak_memory() != planned) failures.emplace_back("not as planned");
      });
    }
  }
}

// Three ranks are not a power of two: two heights of a third of what is trained and of the tied table, and
// leaves of the largest unit, once.
TEST(Assembly, TreesShareTheirLeaves) {
  Config config = config_for(Architecture::kGpt2, {.dp = 3});
  config.train.global_batch = 3;
  config.reduction = "tree";
  on_mesh(config, [&](Assembly& assembly, std::vector<std::string>& failures) {
    std::int64_t all = 0;
    std::int64_t largest = 0;
    for (const Unit& unit : assembly.params.units()) {
      all += unit.elements;
      largest = std::max(largest, unit.elements);
    }
    const std::int64_t table = assembly.params.units().front().elements;
    const std::int64_t expected = 4 * (2 * all / 3 + 2 * table / 3 + largest);
    if (assembly.planned_memory()[MemoryCategory::kCommunication] != expected) {
      failures.push_back(
          fmt::format("{} instead of {}", assembly.planned_memory()[MemoryCategory::kCommunication], expected));
    }
  });
}

TEST(Assembly, AFullyMaskedBatchHasNoLossOnAnyMesh) {
  for (const Mesh& mesh : {Mesh{.tp = 2, .pp = 2}, Mesh{.dp = 2, .tp = 2, .pp = 2, .zero = 3}}) {
    on_mesh(config_for(Architecture::kGpt2, mesh), [](Assembly& assembly, std::vector<std::string>& failures) {
      const StepResult result = train_step(assembly, OwnBatch(assembly, 0, /*masked=*/true).view(), 1e-3, 1);
      if (result.loss != 0.0 || result.grad_norm != 0.0 || result.unmasked_tokens != 0 || result.skipped)
        failures.emplace_back(fmt::format("loss {} norm {}", result.loss, result.grad_norm));
    });
  }
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* begin = static_cast<const std::byte*>(t.raw());
  return {begin, begin + t.bytes()};
}

// One element of one rank: every rank says so, and has the weights that it had.
TEST(Assembly, ANaNOfOneRankEndsTheStepOnAll) {
  const Config config = config_for(Architecture::kLlama, {.dp = 2, .tp = 2, .pp = 2, .zero = 1});
  for (int broken = 0; broken < 8; ++broken) {
    std::vector<std::string> messages(8);
    on_mesh(config, [&](Assembly& assembly, std::vector<std::string>& failures) {
      const int rank = assembly.groups.control->rank();
      train_step(assembly, OwnBatch(assembly, 0).view(), 1e-3, 1);
      assembly.settle();
      const int unit = static_cast<int>(assembly.params.units().size()) - 1;
      if (rank == broken) assembly.params.unit_weights(unit).data<float>()[0] = std::nanf("");
      const auto before = bytes_of(assembly.params.owned_weights(0));
      try {
        train_step(assembly, OwnBatch(assembly, 1).view(), 1e-3, 2);
        failures.emplace_back("no error on rank " + std::to_string(rank));
      } catch (const RunError& error) {
        messages[static_cast<std::size_t>(rank)] = error.what();
      }
      if (rank != broken && bytes_of(assembly.params.owned_weights(0)) != before)
        failures.emplace_back("weights have changed");
    });
    for (const std::string& message : messages) {
      EXPECT_NE(message.find("not finite"), std::string::npos) << message;
      EXPECT_EQ(message, messages.front());
    }
  }
}

TEST(Assembly, OverflowsSkipOnAllStagesAndTensorParallelRanksTogether) {
  const auto skipped_on = [](const Mesh& mesh) {
    Config config = config_for(Architecture::kGpt2, mesh, DType::kF16);
    config.precision.loss_scale = 1e9;
    std::vector<bool> skipped;
    for (const StepResult& result : steps_on(config, 20)) skipped.push_back(result.skipped);
    return skipped;
  };
  const std::vector<bool> dense = skipped_on({});
  EXPECT_TRUE(dense.front());
  EXPECT_FALSE(dense.back());
  for (const Mesh& mesh : {Mesh{.pp = 2}, Mesh{.pp = 6, .schedule = "zb-h1"}}) {
    EXPECT_EQ(skipped_on(mesh), dense) << to_string(mesh);
  }
  const std::vector<bool> cut = skipped_on({.dp = 2, .tp = 2, .pp = 2, .zero = 2});
  EXPECT_TRUE(cut.front());
  EXPECT_FALSE(cut.back());
}

}  // namespace
}  // namespace meshtrain
