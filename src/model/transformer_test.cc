// Pieces of a model, chained by hand, against the whole of it: the same bits, however it is cut.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/philox.h"
#include "comm/engines.h"
#include "ops/cross_entropy.h"
#include "ops/testing.h"

namespace meshtrain {
namespace {

using Pass = Transformer::Pass;
using ops::testing::HostTensor;

constexpr BatchShape kShape = {.batch = 2, .seq = 7};
constexpr int kMicroBatches = 2;
constexpr float kLossScale = 1.0F / 28.0F;

ModelSpec small_model(Architecture arch, bool tied) {
  return {.arch = arch,
          .layers = 3,
          .hidden = 24,
          .heads = 4,
          .kv_heads = arch == Architecture::kGpt2 ? 4 : 2,
          .head_dim = 6,
          .ffn_hidden = 52,
          .vocab = 37,
          .context = 9,
          .tie_embeddings = tied};
}

// Every way to cut the blocks: the embedding, or the head, may be alone in a piece.
std::vector<std::vector<ModelPiece>> all_cuts(std::int64_t layers) {
  std::vector<std::vector<ModelPiece>> cuts;
  std::vector<std::int64_t> counts;
  const auto extend = [&](const auto& self, std::int64_t left) -> void {
    std::vector<ModelPiece> pieces;
    std::int64_t first = 0;
    counts.push_back(left);
    for (const std::int64_t count : counts) {
      pieces.push_back({.first_block = first, .blocks = count, .embedding = pieces.empty(), .head = false});
      first += count;
    }
    pieces.back().head = true;
    cuts.push_back(pieces);
    counts.pop_back();
    for (std::int64_t count = counts.empty() ? 0 : 1; count <= left; ++count) {
      counts.push_back(count);
      self(self, left - count);
      counts.pop_back();
    }
  };
  extend(extend, layers);
  return cuts;
}

std::string to_string(const std::vector<ModelPiece>& pieces) {
  std::string text = "blocks";
  for (const ModelPiece& piece : pieces) text += ' ' + std::to_string(piece.blocks);
  return text;
}

// Weights are there while they are held, gradients between their begin and their end, and nothing else.
class StrictHooks final : public UnitHooks {
 public:
  explicit StrictHooks(ParamStore& store) : store_(store) {
    for (int unit = 0; unit < static_cast<int>(store.units().size()); ++unit) {
      weights_.push_back(store.unit_weights(unit));
      gradients_.push_back(store.unit_gradients(unit));
      store.place_weights(unit, {});
      store.place_gradients(unit, {});
    }
    holds_.resize(weights_.size(), 0);
    micro_batches_.resize(weights_.size(), 0);
  }

  void acquire(int unit) override {
    acquired.push_back(unit);
    if (holds_[index(unit)]++ == 0) store_.place_weights(unit, weights_[index(unit)]);
  }
  void release(int unit) override {
    check(holds_[index(unit)] > 0, "released more often than acquired");
    if (--holds_[index(unit)] == 0) store_.place_weights(unit, {});
  }
  bool begin_gradients(int unit) override {
    check(!store_.unit_gradients(unit).defined(), "gradients begun twice");
    store_.place_gradients(unit, gradients_[index(unit)]);
    return micro_batches_[index(unit)]++ > 0;
  }
  void end_gradients(int unit) override { store_.place_gradients(unit, {}); }
  bool begin_tied_gradients() override { return tied_++ > 0; }

  bool nothing_held() const {
    return std::all_of(holds_.begin(), holds_.end(), [](int holds) { return holds == 0; });
  }
  // Everything there, to be looked at.
  void finish() {
    for (int unit = 0; unit < static_cast<int>(weights_.size()); ++unit) {
      store_.place_weights(unit, weights_[index(unit)]);
      store_.place_gradients(unit, gradients_[index(unit)]);
    }
  }

  std::vector<int> acquired;

 private:
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

  ParamStore& store_;
  std::vector<Tensor> weights_, gradients_;
  std::vector<int> holds_, micro_batches_;
  int tied_ = 0;
};

void poison(const Tensor& t) {
  std::memset(t.raw(), 0xFF, static_cast<std::size_t>(t.bytes()));
}

Arena poisoned_arena(Device& device) {
  constexpr std::int64_t kBytes = 1 << 17;
  Arena arena(device, MemoryCategory::kActivations, "arena", kBytes);
  poison(arena.allocate(DType::kU8, {kBytes}));
  arena.release(0);
  return arena;
}

// One rank with some pieces of the model.
class Stage {
 public:
  Stage(const ModelSpec& spec, const TransformerOptions& options)
      : options_(options),
        device_(make_cpu_device()),
        stream_(*device_, 1),
        model(spec, store_, *device_, options),
        work_(poisoned_arena(*device_)),
        recomputed_(poisoned_arena(*device_)) {
    store_.allocate(*device_, {.compute = options.compute});
    store_.initialize(stream_, 3);
    model.upload_tables(stream_);
    for (int i = 0; i < model.pieces() * kMicroBatches; ++i) saved_.push_back(poisoned_arena(*device_));
    batches_.resize(saved_.size());
  }

  // The copy's weights, from the stage that has the embedding. Before the first pass.
  void begin(const Stage& embedding) {
    if (model.copy_unit() >= 0) {
      const Tensor table = embedding.store_.unit_weights(embedding.model.embedding_unit());
      const Tensor copy = store_.unit_weights(model.copy_unit());
      ASSERT_EQ(copy.bytes(), table.bytes());
      std::memcpy(copy.raw(), table.raw(), static_cast<std::size_t>(table.bytes()));
    }
    for (int unit = 0; unit < static_cast<int>(store_.units().size()); ++unit) {
      if (store_.unit_gradients(unit).defined()) poison(store_.unit_gradients(unit));
    }
    hooks_.emplace(store_);
  }

  Transformer::MicroBatch& batch(int piece, int micro_batch) {
    return batches_[static_cast<std::size_t>(piece * kMicroBatches + micro_batch)];
  }

  // A pass acquires what it announces, and what it works with is taken away when it is done.
  void pass(Pass kind, int piece, int micro_batch, const Tensor& in, const Tensor& out) {
    Arena& saved = saved_[static_cast<std::size_t>(piece * kMicroBatches + micro_batch)];
    const bool split = options_.split_backward;
    Context ctx = {.stream = stream_,
                   .saved = saved,
                   .work = work_,
                   .kept = split ? saved : work_,
                   .recomputed = options_.recompute == RecomputePolicy::kFull && !split ? recomputed_ : saved,
                   .units = *hooks_,
                   .tensor = alone_};
    hooks_->acquired.clear();
    Transformer::MicroBatch& micro = batch(piece, micro_batch);
    switch (kind) {
      case Pass::kForward:
        model.forward(ctx, piece, micro, in, out);
        break;
      case Pass::kBackward:
        model.backward(ctx, piece, micro, kLossScale, in, out);
        break;
      case Pass::kBackwardWeight:
        model.backward_weight(ctx, piece, micro);
        break;
      case Pass::kEvaluation:
        model.evaluate(ctx, piece, micro, in, out);
        break;
    }
    EXPECT_EQ(hooks_->acquired, model.acquires_of(kind, piece)) << "pass " << static_cast<int>(kind);
    EXPECT_TRUE(hooks_->nothing_held());
    EXPECT_EQ(work_.used(), 0);
    if (in.defined()) poison(in);
    const Tensor all_work = work_.allocate(DType::kU8, {work_.capacity()});
    poison(all_work);
    work_.release(0);
  }

  // By name; the part of the tied table's gradient that the head gives has a name of its own.
  void add_gradients(std::map<std::string, std::vector<double>>& gradients) {
    hooks_->finish();
    for (const Param& param : store_.params()) {
      if (store_.units()[static_cast<std::size_t>(param.unit)].copy) continue;
      EXPECT_FALSE(gradients.contains(param.decl.name)) << param.decl.name;
      gradients[param.decl.name] = ops::testing::values_of(store_.gradient(param));
    }
    if (!store_.tied_uses().empty()) gradients["tied"] = ops::testing::values_of(store_.tied_gradients(0));
  }

 private:
  TransformerOptions options_;
  std::unique_ptr<Device> device_;
  Stream stream_;
  ParamStore store_;

 public:
  Transformer model;

 private:
  Arena work_;
  Arena recomputed_;
  std::vector<Arena> saved_;
  std::vector<Transformer::MicroBatch> batches_;
  TensorGroup alone_;
  std::optional<StrictHooks> hooks_;
};

HostTensor random_ids(const std::string& name, std::int64_t vocab, bool masks) {
  const RandomStream random(5, name);
  std::vector<double> ids;
  for (std::int64_t i = 0; i < kShape.tokens(); ++i) {
    const bool masked = masks && i % 4 == 1;
    const auto id = static_cast<double>(random.bits(static_cast<std::uint64_t>(i)) % vocab);
    ids.push_back(masked ? static_cast<double>(ops::kIgnoredTarget) : id);
  }
  return HostTensor::of(DType::kI32, {kShape.tokens()}, ids);
}

struct Result {
  std::vector<std::vector<double>> losses;      // by micro-batch
  std::vector<std::vector<double>> evaluation;  // likewise
  std::map<std::string, std::vector<double>> gradients;
  friend bool operator==(const Result&, const Result&) = default;
};

// A piece, and where it lies.
struct Place {
  Stage* stage;
  int piece;
};

Result run(const ModelSpec& spec, const TransformerOptions& options, bool on_one_stage) {
  std::deque<Stage> stages;
  std::vector<Place> places;
  for (const ModelPiece& piece : options.pieces) {
    TransformerOptions own = options;
    if (!on_one_stage) own.pieces = {piece};
    if (!on_one_stage || stages.empty()) stages.emplace_back(spec, own);
    places.push_back({&stages.back(), on_one_stage ? static_cast<int>(places.size()) : 0});
  }
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) stage->begin(stages.front());

  // Messages over every cut, one for each direction.
  std::deque<HostTensor> memory;
  const auto messages = [&] {
    std::vector<Tensor> tensors(1);
    for (std::size_t i = 1; i < places.size(); ++i) {
      tensors.push_back(memory.emplace_back(options.compute, Shape{kShape.tokens(), spec.hidden}).tensor());
      poison(tensors.back());
    }
    tensors.emplace_back();
    return tensors;
  };
  Result result;
  for (const Pass kind : {Pass::kEvaluation, Pass::kForward, Pass::kBackward, Pass::kBackwardWeight}) {
    if (kind == Pass::kBackwardWeight && !options.split_backward) continue;
    for (int micro_batch = 0; micro_batch < kMicroBatches; ++micro_batch) {
      const std::string name = std::to_string(micro_batch);
      const Tensor tokens = memory.emplace_back(random_ids("tokens " + name, spec.vocab, false)).tensor();
      const Tensor targets = memory.emplace_back(random_ids("targets " + name, spec.vocab, true)).tensor();
      const std::vector<Tensor> at_cut = messages();
      const bool backward = kind == Pass::kBackward || kind == Pass::kBackwardWeight;
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::size_t at = backward ? places.size() - 1 - i : i;
        const auto [stage, piece] = places[at];
        Transformer::MicroBatch& micro = stage->batch(piece, micro_batch);
        micro.shape = kShape;
        micro.tokens = tokens;
        micro.targets = targets;
        stage->pass(kind, piece, micro_batch, at_cut[backward ? at + 1 : at], at_cut[backward ? at : at + 1]);
      }
      const auto [stage, piece] = places.back();
      if (kind == Pass::kEvaluation)
        result.evaluation.push_back(ops::testing::values_of(stage->batch(piece, micro_batch).losses));
      if (kind == Pass::kBackward)
        result.losses.push_back(ops::testing::values_of(stage->batch(piece, micro_batch).losses));
    }
  }
  for (Stage& stage : stages) stage.add_gradients(result.gradients);
  return result;
}

class TransformerPieces : public ::testing::TestWithParam<std::tuple<Architecture, bool, DType>> {};

TEST_P(TransformerPieces, EqualTheWholeModelHoweverItIsCut) {
  const auto [arch, tied, compute] = GetParam();
  const ModelSpec spec = small_model(arch, tied);
  TransformerOptions options = {.compute = compute, .positions = kShape.seq};
  const std::vector<std::vector<ModelPiece>> cuts = all_cuts(spec.layers);
  ASSERT_EQ(cuts.size(), 16U);
  options.pieces = cuts.front();
  ASSERT_EQ(options.pieces.size(), 1U);
  const Result whole = run(spec, options, true);
  EXPECT_EQ(whole.losses, whole.evaluation);
  for (const auto& [name, values] : whole.gradients) {
    for (const double value : values) ASSERT_TRUE(std::isfinite(value)) << name;
  }
  for (const RecomputePolicy recompute :
       {RecomputePolicy::kNone, RecomputePolicy::kSelective, RecomputePolicy::kFull}) {
    for (const bool split : {false, true}) {
      for (const std::vector<ModelPiece>& cut : cuts) {
        for (const bool on_one_stage : {true, false}) {
          options.recompute = recompute;
          options.split_backward = split;
          options.pieces = cut;
          SCOPED_TRACE(fmt::format("{}{}{} recompute {}", to_string(cut), split ? " split backward" : "",
                                   on_one_stage ? " on one stage" : "", static_cast<int>(recompute)));
          const Result pieces = run(spec, options, on_one_stage);
          EXPECT_EQ(pieces.losses, whole.losses);
          EXPECT_EQ(pieces.evaluation, whole.evaluation);
          ASSERT_EQ(pieces.gradients.size(), whole.gradients.size());
          for (const auto& [name, values] : whole.gradients) {
            EXPECT_TRUE(pieces.gradients.at(name) == values) << name;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerPieces,
                         ::testing::Combine(::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                                            ::testing::Bool(), ::testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace meshtrain
