// Plans of meshes against closed forms.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/engines.h"
#include "pipeline/timeline.h"
#include "plan/plan.h"
#include "plan/simulated_rank.h"
#include "plan/timeline_text.h"
#include "train/assembly.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

Config small_config(std::int64_t layers) {
  Config config;
  config.mesh.dp = 1;
  config.model = {.arch = Architecture::kLlama,
                  .layers = layers,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .head_dim = 16,
                  .ffn_hidden = 128,
                  .vocab = 320,
                  .context = 64,
                  .tie_embeddings = false};
  config.data.seq_len = 32;
  config.train.micro_batch = 1;
  config.train.global_batch = 8;
  config.precision.compute = DType::kBF16;
  return config;
}

// ground-truth.md's example: 32 layers of width 4096, 8 x 2048 tokens in bf16.
Config published_config(std::int64_t layers = 32) {
  Config config = small_config(layers);
  config.model.hidden = 4096;
  config.model.heads = config.model.kv_heads = 32;
  config.model.head_dim = 128;
  config.model.ffn_hidden = 11008;
  config.model.vocab = 32000;
  config.model.context = config.data.seq_len = 2048;
  config.train.micro_batch = config.train.global_batch = 8;
  return config;
}
constexpr std::int64_t kPublishedPayload = std::int64_t{8} * 2048 * 4096 * 2;  // 134 MB

AxisBytes of_stage(const Plan& plan, std::size_t stage) {
  return plan.stages[stage].rank.along_axes;
}

// Two all-reduces forward and two backward a layer; as reduce-scatters and all-gathers they send the same. Then
// one each for the embedding and the head, which also shares three doubles a token.
TEST(MeshPlan, TensorTrafficIsThePublishedOne) {
  EXPECT_NEAR(32.0 * 4 * static_cast<double>(kPublishedPayload), 17.2e9, 0.05e9);
  for (const bool sequence_parallel : {false, true}) {
    for (const std::int64_t tp : {2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << sequence_parallel << ' ' << tp);
      const auto sent = [&](std::int64_t layers) {
        Config config = published_config(layers);
        config.mesh.tp = tp;
        config.mesh.sequence_parallel = sequence_parallel;
        const Plan plan = make_plan(config);
        EXPECT_EQ(plan.ranks(), tp);
        EXPECT_EQ(of_stage(plan, 0)[AxisTraffic::kDataGradients], 0);
        EXPECT_EQ(of_stage(plan, 0)[AxisTraffic::kNextStage], 0);
        return of_stage(plan, 0)[AxisTraffic::kTensorLayers];
      };
      const std::int64_t all_reduce = kPublishedPayload * 2 * (tp - 1) / tp;
      const std::int64_t all = sent(32);
      EXPECT_EQ(all - sent(31), 4 * all_reduce);
      const std::int64_t values = std::int64_t{8} * 2048 * (tp - 1) * 3 * 8;
      EXPECT_EQ(all, (32 * 4 + 2) * all_reduce + values);
    }
  }
}

TEST(MeshPlan, PipelineBoundaryIsThePublishedOne) {
  for (const std::int64_t micro_batch : {8, 2}) {
    Config config = published_config();
    config.mesh.pp = 4;
    config.train.micro_batch = micro_batch;
    const Plan plan = make_plan(config);
    const std::vector<StageLink> links = stage_links(plan);
    ASSERT_EQ(links.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(links[i].from, static_cast<std::int64_t>(i));
      EXPECT_EQ(links[i].to, static_cast<std::int64_t>(i + 1));
      EXPECT_EQ(links[i].activations, kPublishedPayload);
      EXPECT_EQ(links[i].gradients, kPublishedPayload);
    }
    EXPECT_NEAR(static_cast<double>(links[0].activations + links[0].gradients), 268e6, 1e6);
    EXPECT_EQ(of_stage(plan, 3)[AxisTraffic::kNextStage], 0);
    EXPECT_EQ(of_stage(plan, 0)[AxisTraffic::kPreviousStage], 0);
  }
  // Sequence parallelism: each rank sends its own rows.
  Config config = published_config();
  config.mesh.pp = 2;
  config.mesh.tp = 4;
  EXPECT_EQ(stage_links(make_plan(config)).front().activations, kPublishedPayload / 4);
  // Pieces in turn: the last stage sends to the first, all but once.
  config.mesh.tp = 1;
  config.mesh.virtual_stages = 4;
  config.mesh.schedule = "interleaved";
  const std::vector<StageLink> links = stage_links(make_plan(config));
  ASSERT_EQ(links.size(), 2U);
  EXPECT_EQ(links[0].activations, 4 * kPublishedPayload);
  EXPECT_EQ(links[1].activations, 3 * kPublishedPayload);
  EXPECT_EQ(links[1].from, 1);
  EXPECT_EQ(links[1].to, 0);
}

// A tied table goes once each way: fp32 gradients to the first stage, bf16 weights back, by each data-parallel
// rank its own part.
TEST(MeshPlan, TiedTableTravelsOnceAStep) {
  Config config = small_config(4);
  config.model.tie_embeddings = true;
  config.mesh.pp = 4;
  const Plan plan = make_plan(config);
  EXPECT_EQ(of_stage(plan, 3)[AxisTraffic::kTiedTable], 320 * 64 * 4);
  EXPECT_EQ(of_stage(plan, 0)[AxisTraffic::kTiedTable], 320 * 64 * 2);
  EXPECT_EQ(of_stage(plan, 1)[AxisTraffic::kTiedTable], 0);
  EXPECT_EQ(plan.parameters,
            std::accumulate(plan.stages.begin(), plan.stages.end(), std::int64_t{0},
                            [](std::int64_t sum, const StagePlan& stage) { return sum + stage.parameters; }));
}

// Narayanan et al. 2021; Qi et al. 2024: what the arenas of each rank hold is what the schedule says.
TEST(MeshPlan, LiveActivationsAreThoseOfTheSchedule) {
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
    for (const std::int64_t p : {2, 4}) {
      for (const std::int64_t m : {1, 2, 3, 4, 9, 64}) {
        SCOPED_TRACE(schedule + ' ' + std::to_string(p) + ' ' + std::to_string(m));
        Config config = small_config(8);
        config.mesh.pp = p;
        config.mesh.schedule = schedule;
        config.mesh.stage_layers.assign(static_cast<std::size_t>(p), 8 / p);
        config.train.global_batch = m;
        const Plan plan = make_plan(config);
        for (std::int64_t r = 0; r < p; ++r) {
          const StagePlan& stage = plan.stages[static_cast<std::size_t>(r)];
          const std::int64_t live = schedule == "gpipe"  ? m
                                    : schedule == "1f1b" ? std::min(m, p - r)
                                                         : std::min(m, p);
          ASSERT_EQ(stage.pieces.size(), 1U);
          // Qi et al. 2024: the second part of a backward pass follows r later on stage r.
          const std::int64_t split = schedule == "zb-h1" ? std::min(m, r + 1) : 0;
          EXPECT_EQ(stage.pieces[0].live, live);
          EXPECT_EQ(stage.live, live);
          EXPECT_EQ(stage.split, split);
          EXPECT_GT(stage.pieces[0].activation_bytes, 0);
          EXPECT_EQ(stage.split_bytes > 0, split > 0);
          EXPECT_EQ(stage.rank.memory[MemoryCategory::kActivations],
                    live * stage.pieces[0].activation_bytes + split * stage.split_bytes);
        }
      }
    }
  }
}

// Narayanan et al. 2021, section 2.2: 2(p - 1 - r) + (v - 1) p warm-up passes and the one at work. Pieces have
// their most at different times, and share what is there.
TEST(MeshPlan, LivePiecesAreThoseOfTheInterleavedSchedule) {
  for (const std::int64_t v : {2, 3, 4}) {
    Config config = small_config(8 * v);
    config.mesh.pp = 4;
    config.mesh.virtual_stages = v;
    config.mesh.schedule = "interleaved";
    config.mesh.stage_layers.assign(static_cast<std::size_t>(4 * v), 2);
    config.train.global_batch = 16;
    const Plan plan = make_plan(config);
    for (std::int64_t r = 0; r < 4; ++r) {
      SCOPED_TRACE(testing::Message() << v << ' ' << r);
      const StagePlan& stage = plan.stages[static_cast<std::size_t>(r)];
      const std::int64_t live = 2 * (3 - r) + (v - 1) * 4 + 1;
      EXPECT_EQ(stage.live, live);
      const PiecePlan& first = stage.pieces.front();
      const PiecePlan& last = stage.pieces.back();
      EXPECT_EQ(stage.rank.memory[MemoryCategory::kActivations],
                live * first.activation_bytes + last.live * (last.activation_bytes - first.activation_bytes));
    }
  }
}

// Any split of the layers: as many bytes as are alive at once, found by walking through the step; on the stage
// with the head, which has slots of its own, no more than if its piece had.
TEST(MeshPlan, PiecesOfAnySizeShareTheirMemory) {
  for (const std::vector<std::int64_t>& layers : std::vector<std::vector<std::int64_t>>{{1, 1, 1, 1, 1, 1},
                                                                                        {0, 3, 2, 1, 1, 0},
                                                                                        {5, 1, 1, 1, 1, 5},
                                                                                        {2, 4, 6, 4, 2, 2},
                                                                                        {1, 2, 3, 4, 5, 6}}) {
    for (const std::int64_t micro_batches : {1, 4, 7, 12}) {
      SCOPED_TRACE(testing::PrintToString(layers) + ' ' + std::to_string(micro_batches));
      Config config = small_config(std::accumulate(layers.begin(), layers.end(), std::int64_t{0}));
      config.mesh.pp = 2;
      config.mesh.virtual_stages = 3;
      config.mesh.schedule = "interleaved";
      config.mesh.stage_layers = layers;
      config.train.global_batch = micro_batches;
      const Plan plan = make_plan(config);
      for (std::size_t r = 0; r < 2; ++r) {
        const std::vector<PiecePlan>& pieces = plan.stages[r].pieces;
        std::int64_t alive = 0;
        std::int64_t most = 0;
        std::int64_t apart = 0;
        for (const PiecePlan& piece : pieces) apart += piece.live * piece.activation_bytes;
        for (const PipelineAction& action :
             schedule_of(config.mesh).order(pipeline_of(config), static_cast<int>(r))) {
          const std::int64_t bytes = pieces[static_cast<std::size_t>(action.chunk)].activation_bytes;
          alive += action.step == PipelineStep::kForward ? bytes : -bytes;
          most = std::max(most, alive);
        }
        const std::int64_t activations = plan.stages[r].rank.memory[MemoryCategory::kActivations];
        EXPECT_GE(activations, most);
        EXPECT_TRUE(r > 0 || activations == most) << activations << ' ' << most;
        EXPECT_LE(activations, apart);
      }
    }
  }
}

TEST(MeshPlan, LayersOfAllStagesAreTheModel) {
  Config config = small_config(61);
  const Plan whole = make_plan(config);
  const auto expect_whole = [&](const Plan& plan) {
    ASSERT_EQ(plan.layers.size(), 63U);
    for (std::size_t i = 0; i < 63; ++i) {
      EXPECT_EQ(plan.layers[i].name, whole.layers[i].name);
      EXPECT_EQ(plan.layers[i].parameters, whole.layers[i].parameters);
      EXPECT_EQ(plan.layers[i].forward_flops, whole.layers[i].forward_flops);
      EXPECT_EQ(plan.layers[i].backward_flops, whole.layers[i].backward_flops);
    }
    EXPECT_EQ(plan.step_flops, whole.step_flops);
    std::int64_t blocks = 0;
    for (const StagePlan& stage : plan.stages) {
      for (const PiecePlan& piece : stage.pieces) blocks += piece.layers.blocks;
    }
    EXPECT_EQ(blocks, 61);
  };
  EXPECT_EQ(whole.layers.front().name, "embed");
  EXPECT_EQ(whole.layers.back().name, "head");
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1"}) {
    config.mesh.pp = 4;
    config.mesh.schedule = schedule;
    expect_whole(make_plan(config));
  }
  config.mesh.schedule = "interleaved";
  config.mesh.virtual_stages = 3;
  expect_whole(make_plan(config));
  config.mesh.tp = 4;
  config.mesh.dp = 2;
  expect_whole(make_plan(config));
}

// Plans run one and two micro-steps, and say what many send.
TEST(MeshPlan, ManyMicroStepsSendWhatARunOfThemSends) {
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      for (const std::string reduction : {"fast", "tree"}) {
        for (const std::int64_t m : {3, 5, 8}) {
          SCOPED_TRACE(testing::Message() << schedule << ' ' << zero << ' ' << reduction << ' ' << m);
          Config config = small_config(8);
          config.model.kv_heads = 1;
          config.model.tie_embeddings = m == 5;
          config.mesh.tp = config.mesh.dp = config.mesh.pp = 2;
          config.mesh.zero = zero;
          config.mesh.schedule = schedule;
          config.mesh.virtual_stages = schedule == "interleaved" ? 2 : 1;
          config.reduction = reduction;
          config.train.global_batch = 2 * m;
          const Plan plan = make_plan(config);
          for (std::int64_t rank = 0; rank < 8; ++rank) {
            const SimulatedRank run(config, rank);
            EXPECT_EQ(run.assembly().sent().sent, plan.rank(rank).sent.sent) << rank;
            EXPECT_EQ(run.assembly().sent().calls, plan.rank(rank).sent.calls) << rank;
            EXPECT_EQ(axis_bytes_of(run.assembly()), plan.rank(rank).along_axes) << rank;
          }
        }
      }
    }
  }
}

TEST(MeshPlan, ZeroStagesAreOfTheMostLoadedRank) {
  for (const std::vector<std::int64_t>& stage_layers : {std::vector<std::int64_t>{3, 1}, {30, 1}}) {
    Config config = small_config(stage_layers[0] + stage_layers[1]);
    config.mesh = {.dp = 4, .zero = 1, .tp = 2, .pp = 2, .stage_layers = stage_layers};
    config.model.vocab = 20'000;
    const Plan plan = make_plan(config);
    ASSERT_EQ(plan.zero_stages.size(), 4U);
    const std::size_t most_loaded = stage_layers[0] == 3 ? 1 : 0;  // its head, or its layers
    const StagePlan& most = plan.stages[most_loaded];
    EXPECT_GT(most.rank.memory.total(), plan.stages[1 - most_loaded].rank.memory.total());
    EXPECT_EQ(plan.zero_stages[1].memory, most.rank.memory.total());
    // bf16 weights, fp32 gradients, masters and two states: 18 bytes an element. The stages share out the last
    // 12, then gradients, then all.
    const std::int64_t elements = most.rank.memory[MemoryCategory::kParameters] / 2;
    EXPECT_EQ(plan.zero_stages[0].states, elements * 18);
    EXPECT_EQ(plan.zero_stages[1].states, elements * (6 + 3));
    EXPECT_EQ(plan.zero_stages[2].states, elements * (2 + 4));
    EXPECT_EQ(plan.zero_stages[3].states, elements * 18 / 4);
  }
}

TEST(MeshPlan, TimelineIsTheScheduleAndTheModelsOwn) {
  Config config = small_config(6);
  EXPECT_NE(timeline_text(make_plan(config), config, 120).find("no pipeline"), std::string::npos);
  config.mesh.pp = 2;
  config.train.global_batch = 3;
  const std::string text = timeline_text(make_plan(config), config, 120);
  EXPECT_NE(text.find(draw(schedule_of(config.mesh), pipeline_of(config), 120)), std::string::npos) << text;
  EXPECT_NE(text.find("stage 1 | .. F0 B0--- F1 B1--- F2 B2---"), std::string::npos) << text;
  // With one micro-batch each stage waits while the other works, whatever the split.
  config.train.global_batch = 1;
  config.mesh.stage_layers = {5, 1};
  const std::string even = timeline_text(make_plan(config), config, 120);
  EXPECT_NE(even.find("idle 50.0 % of the time"), std::string::npos) << even;
  EXPECT_NE(even.find("take no time: idle 50.0 %"), std::string::npos) << even;
  // With many, stage 1 idles for what stage 0 has more: 5 blocks to one and the head.
  config.train.global_batch = 1000;
  const Plan plan = make_plan(config);
  const auto flops = [&](std::size_t stage) { return static_cast<double>(plan.stages[stage].flops); };
  const double idle = 50.0 * (1.0 - flops(1) / flops(0));
  const std::string uneven = timeline_text(plan, config, 120);
  const double found = std::stod(uneven.substr(uneven.rfind("idle ") + 5));
  EXPECT_NEAR(found, idle, 0.2) << uneven;
}

}  // namespace
}  // namespace meshtrain
