// Each layer, cut between ranks with and without sequence parallelism, equals the whole one: outputs, gradients
// of inputs and of weights.
#include <gtest/gtest.h>

#include "model/block.h"
#include "model/cut.h"
#include "model/embedding.h"
#include "model/lm_head.h"
#include "model/tensor_ranks_testing.h"
#include "ops/cross_entropy.h"

namespace meshtrain {
namespace {

using testing::LayerBody;
using testing::LayerRank;
using testing::Values;

constexpr BatchShape kShape = {.batch = 2, .seq = 18};  // cut between 2, 3 and 4 ranks, also within sequences
constexpr std::int64_t kTokens = 36;

struct Named {
  const char* name;
  ModelSpec spec;
};

std::vector<Named> specs() {
  std::vector<Named> all = {{"gpt2", testing::small_spec(Architecture::kGpt2, 12)},
                            {"llama", testing::small_spec(Architecture::kLlama, 12)},
                            {"grouped", testing::small_spec(Architecture::kLlama, 4)},
                            {"replicated", testing::small_spec(Architecture::kLlama, 2)},
                            {"qwen2", testing::small_spec(Architecture::kLlama, 1)},
                            {"qwen3", testing::small_spec(Architecture::kLlama, 2)}};
  all[4].spec.qkv_bias = true;
  all[5].spec.qk_norm = true;
  return all;
}

bool divides(const ModelSpec& spec, int ranks) {
  return spec.heads % ranks == 0 && (spec.kv_heads % ranks == 0 || ranks % spec.kv_heads == 0);
}

// Runs `body` whole and on 2, 3 and 4 ranks.
void expect_sharded_equals_whole(const Named& named, DType dtype, double tolerance, const LayerBody& body) {
  const auto expected = testing::wholes(testing::run_layer(1, false, dtype, body));
  for (const int ranks : {2, 3, 4}) {
    if (!divides(named.spec, ranks)) continue;
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks{}", named.name, ranks,
                               sequence_parallel ? " with sequence parallelism" : ""));
      const auto records = testing::run_layer(ranks, sequence_parallel, dtype, body);
      testing::expect_equal(testing::wholes(records), expected, tolerance);
    }
  }
}

// Two micro-batches, of which the second adds.
void run_attention(LayerRank& rank, const ModelSpec& spec) {
  const SelfAttention layer(spec, rank.store, "attn.", rank.cos_sin(spec, kShape.seq), rank.part());
  rank.allocate_parameters();
  for (const int micro : {0, 1}) {
    Context ctx = rank.context(rank.kept);
    ctx.accumulate = micro > 0;
    const Tensor x = rank.tensor.gather(rank.rows(fmt::format("x{}", micro), kTokens, spec.hidden), rank.saved);
    SelfAttention::Saved saved;
    const Tensor y = rank.tensor.reduce(layer.forward(ctx, kShape, x, micro == 0, saved));
    rank.record_rows(fmt::format("y{}", micro), y);
    const Tensor own = rank.rows("dy", kTokens, spec.hidden);
    const SharedRows dy = {.own = own, .whole = rank.tensor.gather(own, rank.saved)};
    SelfAttention::Gradients grads;
    const Tensor dx = layer.backward_input(ctx, kShape, saved, dy.whole, rank.work, grads);
    layer.backward_weight(ctx, kShape, saved, x, dy, grads);
    rank.record_rows(fmt::format("dx{}", micro), rank.tensor.reduce(dx));
  }
  rank.record_gradients();
}

void run_feed_forward(LayerRank& rank, const ModelSpec& spec) {
  const FeedForward layer(spec, rank.store, "mlp.", rank.part());
  rank.allocate_parameters();
  Context ctx = rank.context();
  const Tensor x = rank.tensor.gather(rank.rows("x", kTokens, spec.hidden), rank.saved);
  FeedForward::Saved saved;
  rank.record_rows("y", rank.tensor.reduce(layer.forward(ctx, x, saved)));
  const Tensor own = rank.rows("dy", kTokens, spec.hidden);
  const SharedRows dy = {.own = own, .whole = rank.tensor.gather(own, rank.saved)};
  FeedForward::Gradients grads;
  const Tensor dx = layer.backward_input(ctx, saved, dy.whole, rank.work, grads);
  layer.backward_weight(ctx, saved, x, dy, grads);
  rank.record_rows("dx", rank.tensor.reduce(dx));
  rank.record_gradients();
}

void run_norm(LayerRank& rank, const ModelSpec& spec) {
  const Norm norm = make_norm(spec, rank.store, "norm.", rank.part());
  rank.allocate_parameters();
  Context ctx = rank.context();
  const Tensor x = rank.rows("x", kTokens, spec.hidden);
  const Tensor dy = rank.rows("dy", kTokens, spec.hidden);
  const Tensor y = rank.result_rows(kTokens, spec.hidden);
  const Tensor dx = rank.result_rows(kTokens, spec.hidden);
  NormSaved saved;
  norm.forward(ctx, x, y, saved, rank.saved);
  norm.backward_input(ctx, saved, dy, {}, dx);
  norm.backward_weight(ctx, saved, dy);
  rank.record_rows("y", y);
  rank.record_rows("dx", dx);
  rank.record_gradients();
}

// How a block is run; none of it may change a bit.
enum class BlockRun : std::uint8_t { kPlain, kSelective, kFull, kSplit, kSplitInWork };

void run_block(LayerRank& rank, const ModelSpec& spec, BlockRun run) {
  const Block block(spec, rank.store, "layers.0.", rank.cos_sin(spec, kShape.seq), rank.part());
  rank.allocate_parameters();
  Context ctx = rank.context(run == BlockRun::kSplit ? rank.kept : rank.work);
  const Tensor x = rank.rows("x", kTokens, spec.hidden);
  const Tensor dout = rank.rows("dy", kTokens, spec.hidden);
  const Tensor out = rank.result_rows(kTokens, spec.hidden);
  const Tensor dx = rank.result_rows(kTokens, spec.hidden);
  Block::Saved saved;
  block.forward(ctx, kShape, x, run == BlockRun::kPlain, out, saved);
  rank.record_rows("out", out);
  if (run == BlockRun::kFull) {
    rank.saved.release(0);
    block.forward_again(ctx, kShape, x, saved);
  }
  EXPECT_EQ(rank.work.used(), 0);
  if (run == BlockRun::kSplit || run == BlockRun::kSplitInWork) {
    Block::Gradients grads;
    block.backward_input(ctx, kShape, saved, dout, dx, grads);
    EXPECT_EQ(rank.work.used() > 0, run == BlockRun::kSplitInWork);
    block.backward_weight(ctx, kShape, saved, grads);
  } else {
    block.backward(ctx, kShape, saved, dout, dx);
    EXPECT_EQ(rank.work.used(), 0);
  }
  EXPECT_EQ(rank.kept.used() > 0, run == BlockRun::kSplit);
  rank.record_rows("dx", dx);
  rank.record_gradients();
}

void run_embedding(LayerRank& rank, const ModelSpec& spec) {
  const ParamRef table = rank.store.declare(vocabulary_matrix(spec, "embed.tokens", rank.part()));
  ParamRef positions;
  if (spec.arch == Architecture::kGpt2) {
    positions = rank.store.declare(
        copied({.name = "embed.positions", .shape = {spec.context, spec.hidden}}, rank.part(), false));
  }
  const Embedding layer(table, positions, rank.part());
  rank.allocate_parameters();
  Values tokens;
  for (std::int64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<double>(i * i * 7 % spec.vocab));
  tokens.back() = static_cast<double>(spec.vocab - 1);
  const Tensor out = rank.result_rows(kTokens, spec.hidden);
  for (const bool accumulate : {false, true}) {
    Context ctx = rank.context();
    ctx.accumulate = accumulate;
    layer.forward(ctx, kShape, rank.ids(tokens), 2, out);
    layer.backward_weight(ctx, kShape, rank.ids(tokens), rank.rows("dy", kTokens, spec.hidden));
  }
  rank.record_rows("out", out);
  rank.record_gradients();
}

void run_head(LayerRank& rank, const ModelSpec& spec) {
  const LmHead head(rank.store.declare(vocabulary_matrix(spec, "head.weight", rank.part())), spec.vocab,
                    rank.part());
  rank.allocate_parameters();
  Context ctx = rank.context();
  Values targets;
  for (std::int64_t i = 0; i < kTokens; ++i)
    targets.push_back(static_cast<double>((i * i * 5 + 1) % spec.vocab));
  targets[0] = targets[17] = ops::kIgnoredTarget;
  targets[1] = static_cast<double>(spec.vocab - 1);
  const Tensor x = rank.rows("x", kTokens, spec.hidden);
  const Tensor losses = rank.result(DType::kF32, {kTokens});
  const Tensor again = rank.result(DType::kF32, {kTokens});
  const Tensor dx = rank.result_rows(kTokens, spec.hidden);
  head.forward(ctx, x, rank.ids(targets), losses);
  head.forward_backward(ctx, x, rank.ids(targets), 0.5F, again, dx);
  EXPECT_EQ(ops::testing::values_of(losses), ops::testing::values_of(again));
  rank.record_same("losses", losses);
  rank.record_rows("dx", dx);
  // In place, and added.
  ctx.accumulate = true;
  head.forward_backward(ctx, x, rank.ids(targets), 0.5F, again, x);
  EXPECT_EQ(ops::testing::values_of(x), ops::testing::values_of(dx));
  EXPECT_EQ(rank.work.used(), 0);
  rank.record_gradients();
}

TEST(TensorRanks, AttentionEqualsTheWhole) {
  for (const Named& named : specs()) {
    expect_sharded_equals_whole(named, DType::kF32, 1e-5,
                                [&](LayerRank& rank) { run_attention(rank, named.spec); });
  }
}

TEST(TensorRanks, FeedForwardEqualsTheWhole) {
  for (const Named& named : {specs()[0], specs()[1]}) {
    expect_sharded_equals_whole(named, DType::kF32, 1e-5,
                                [&](LayerRank& rank) { run_feed_forward(rank, named.spec); });
  }
}

TEST(TensorRanks, NormEqualsTheWhole) {
  for (const Named& named : {specs()[0], specs()[1]}) {
    expect_sharded_equals_whole(named, DType::kF32, 1e-5, [&](LayerRank& rank) { run_norm(rank, named.spec); });
  }
}

TEST(TensorRanks, BlockEqualsTheWhole) {
  for (const Named& named : specs()) {
    expect_sharded_equals_whole(named, DType::kF32, 1e-5,
                                [&](LayerRank& rank) { run_block(rank, named.spec, BlockRun::kPlain); });
  }
}

TEST(TensorRanks, HalfPrecisionIsNear) {
  for (const Named& named : {specs()[0], specs()[5]}) {
    expect_sharded_equals_whole(named, DType::kBF16, 0.04,
                                [&](LayerRank& rank) { run_block(rank, named.spec, BlockRun::kPlain); });
    expect_sharded_equals_whole(named, DType::kBF16, 0.02,
                                [&](LayerRank& rank) { run_head(rank, named.spec); });
  }
}

// The vocabulary does not divide; with 5 tokens, the last of four ranks has nothing but padding.
TEST(TensorRanks, EmbeddingHasTheBitsOfTheWhole) {
  for (Named named : {specs()[0], specs()[1]}) {
    for (const std::int64_t vocab : {97, 96, 5}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        named.spec.vocab = vocab;
        expect_sharded_equals_whole(named, dtype, 0.0,
                                    [&](LayerRank& rank) { run_embedding(rank, named.spec); });
      }
    }
  }
}

TEST(TensorRanks, HeadEqualsTheWhole) {
  Named named = specs()[0];
  for (const std::int64_t vocab : {97, 96, 5}) {
    named.spec.vocab = vocab;
    expect_sharded_equals_whole(named, DType::kF32, 1e-5, [&](LayerRank& rank) { run_head(rank, named.spec); });
  }
}

// Recompute, overlap and the split of the backward pass change no bit, whatever the ranks.
TEST(TensorRanks, NoWayToRunABlockChangesABit) {
  for (const Named& named : {specs()[0], specs()[5]}) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool sequence_parallel : {false, true}) {
        const auto run = [&](BlockRun how) {
          return testing::wholes(
              testing::run_layer(ranks, sequence_parallel, DType::kBF16,
                                 [&](LayerRank& rank) { run_block(rank, named.spec, how); }));
        };
        const auto expected = run(BlockRun::kPlain);
        for (const BlockRun how :
             {BlockRun::kSelective, BlockRun::kFull, BlockRun::kSplit, BlockRun::kSplitInWork}) {
          EXPECT_TRUE(run(how) == expected)
              << named.name << ' ' << ranks << ' ' << sequence_parallel << ' ' << static_cast<int>(how);
        }
      }
    }
  }
}

// Published: ln(50257), also with padding that is not to be counted (50257 = 29 · 1733).
TEST(TensorRanks, AUniformPredictionLosesLnOfTheVocabulary) {
  ModelSpec spec = testing::small_spec(Architecture::kGpt2, 12);
  spec.vocab = 50257;
  spec.hidden = 3;
  for (const int ranks : {1, 2, 3, 4}) {
    const auto records = testing::run_layer(ranks, true, DType::kF32, [&](LayerRank& rank) {
      const LmHead head(rank.store.declare(vocabulary_matrix(spec, "head.weight", rank.part())), spec.vocab,
                        rank.part());
      rank.allocate_parameters(0.0);
      Context ctx = rank.context();
      const Tensor losses = rank.result(DType::kF32, {12});
      const Tensor targets =
          rank.ids({0, 1, 12564, 12565, 16752, 16753, 25128, 25129, 25130, 37695, 50255, 50256});
      head.forward(ctx, rank.rows("x", 12, spec.hidden), targets, losses);
      rank.record_same("losses", losses);
    });
    const Values losses = testing::wholes(records).at("losses");
    EXPECT_EQ(losses.size(), 12U);
    for (const double loss : losses) EXPECT_NEAR(loss, 10.824905, 2e-6) << ranks;
  }
}

// What one block sends and keeps in a forward and a backward pass, on simulated ranks.
struct BlockCost {
  CommStats sent;
  std::int64_t saved_bytes = 0;
};
BlockCost cost_of_block(const ModelSpec& spec, BatchShape shape, int ranks, bool sequence_parallel,
                        bool keep_all) {
  const std::unique_ptr<World> world = make_sim_world(ranks - 1, ranks);
  const std::unique_ptr<Device> device = world->make_device();
  const std::unique_ptr<Communicator> group = world->everyone("tp");
  const std::unique_ptr<Communicator> background = world->everyone("tp background");
  CommQueue queue(*device, true);
  const TensorGroup tensor(*group, *background, queue, sequence_parallel);
  ParamStore store;
  store.begin_unit("unit");
  const Block block(spec, store, "layers.0.", {}, tensor.part());
  store.allocate(*device, {.compute = DType::kBF16, .sharding = {}});
  Stream stream(*device, 1);
  Arena saved = Arena::measuring("saved");
  Arena work = Arena::measuring("work");
  UnitHooks units;
  Context ctx{.stream = stream,
              .saved = saved,
              .work = work,
              .kept = work,
              .recomputed = saved,
              .units = units,
              .tensor = tensor};
  Arena residual = Arena::measuring("residual");
  const auto rows = [&] {
    return residual.allocate(DType::kBF16, {tensor.outer_rows(shape.tokens()), spec.hidden});
  };
  Block::Saved of_block;
  block.forward(ctx, shape, rows(), keep_all, rows(), of_block);
  const std::int64_t saved_bytes = saved.used();
  block.backward(ctx, shape, of_block, rows(), rows());
  return {.sent = group->stats() + background->stats(), .saved_bytes = saved_bytes};
}

// Published: 2 + 2 all-reduces of batch·seq·hidden elements a layer; hidden 4096, 8×2048 tokens, bf16: 134 MB
// each, 17.2 GB a step of 32 layers. A ring sends 2 (K-1)/K of it.
TEST(TensorRanks, BlocksSendTwoAllReducesEachWay) {
  ModelSpec spec = testing::small_spec(Architecture::kGpt2, 32);
  spec.hidden = 4096;
  spec.heads = 32;
  spec.head_dim = 128;
  spec.ffn_hidden = 16384;
  const BatchShape shape = {.batch = 8, .seq = 2048};
  constexpr std::int64_t kPayload = 134'217'728;
  EXPECT_EQ(32 * 4 * kPayload, 17'179'869'184);
  for (const int ranks : {2, 8}) {
    const std::int64_t pass = kPayload / ranks * (ranks - 1);  // of an all-gather or a reduce-scatter
    const auto calls = [](const BlockCost& cost) {
      return cost.sent.calls[static_cast<std::size_t>(Traffic::kTensor)];
    };
    for (const bool keep_all : {true, false}) {
      const BlockCost plain = cost_of_block(spec, shape, ranks, false, keep_all);
      EXPECT_EQ(calls(plain), 4);
      EXPECT_EQ(plain.sent.sent_for(Traffic::kTensor), 4 * 2 * pass);
      // Two more gathers where inputs are gathered again.
      const BlockCost cut = cost_of_block(spec, shape, ranks, true, keep_all);
      EXPECT_EQ(calls(cut), keep_all ? 8 : 10);
      EXPECT_EQ(cut.sent.sent_for(Traffic::kTensor), (keep_all ? 8 : 10) * pass);
    }
  }
}

// Published (Korthikanti et al. 2022): s·b·h·(10 + 24/t) bytes a layer without the attention matrix, and with
// sequence parallelism and selective recompute 34·s·b·h/t. Less the masks of dropout, which this model has not:
// two of one byte on the residual stream; and less the attention output (2/t) where it is computed again. Above
// it: statistics of two norms, two fp32 a row each.
TEST(TensorRanks, BlocksKeepWhatIsPublished) {
  ModelSpec spec = testing::small_spec(Architecture::kGpt2, 32);
  spec.hidden = 4096;
  spec.heads = 32;
  spec.head_dim = 128;
  spec.ffn_hidden = 16384;
  const BatchShape shape = {.batch = 8, .seq = 2048};
  const std::int64_t sbh = shape.tokens() * spec.hidden;
  const std::int64_t input = 2 * sbh;  // the block before has it
  const std::int64_t log_sums = shape.tokens() * spec.heads * 4;
  for (const int ranks : {2, 8}) {
    const std::int64_t stats = shape.tokens() * 16;
    EXPECT_EQ(input + cost_of_block(spec, shape, ranks, false, true).saved_bytes,
              sbh * (10 - 2) + 24 * sbh / ranks + stats + log_sums / ranks);
    EXPECT_EQ(input / ranks + cost_of_block(spec, shape, ranks, true, false).saved_bytes,
              (34 - 2 - 2) * sbh / ranks + stats / ranks);
  }
}

}  // namespace
}  // namespace meshtrain
