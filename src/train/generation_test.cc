#include "train/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "ops/elementwise.h"
#include "ops/transfer.h"
#include "train/inference.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kWindow = 24;

ModelSpec gpt2() {
  return {.arch = Architecture::kGpt2,
          .layers = 2,
          .hidden = 48,
          .heads = 3,
          .kv_heads = 3,
          .head_dim = 16,
          .ffn_hidden = 96,
          .vocab = 101,
          .context = kWindow,
          .tie_embeddings = true};
}

ModelSpec llama() {
  ModelSpec spec = gpt2();
  spec.arch = Architecture::kLlama;
  spec.heads = 6;  // three query heads share one of keys and values, and together are wider than hidden
  spec.kv_heads = 2;
  spec.tie_embeddings = false;
  return spec;
}

ModelSpec qwen() {
  ModelSpec spec = llama();
  spec.qkv_bias = true;
  spec.qk_norm = true;
  spec.rope_scaling = {.factor = 8.0, .original_context = 16};
  return spec;
}

const std::map<std::string, ModelSpec> kSpecs = {{"gpt2", gpt2()}, {"llama", llama()}, {"qwen", qwen()}};

// Every weight random, so that each of them matters.
void randomize(ParamStore& params, Stream& stream) {
  for (const Param& param : params.params()) {
    const RandomStream random(3, "test/" + param.decl.name);
    const bool is_scale = param.decl.init == Init::kOnes;
    std::vector<float> values(static_cast<std::size_t>(param.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 0.2F * random.normal(i) + (is_scale ? 1.0F : 0.0F);
    ops::cast(stream, Tensor(values.data(), DType::kF32, param.decl.shape), params.weight(param));
  }
}

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab) {
  const RandomStream random(4, "test/tokens");
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(i)) %
                                               static_cast<std::uint64_t>(vocab)));
  }
  return tokens;
}

// The same weights as an InferenceModel after randomize(), and no cache: all positions in one pass.
class WholeForward {
 public:
  WholeForward(const ModelSpec& spec, DType compute)
      : device_(make_cpu_device()),
        stream_(*device_, 2),
        model_(spec, params_, *device_, {.compute = compute, .positions = kWindow}),
        saved_(*device_, MemoryCategory::kActivations, "activations", 16 << 20),
        work_(*device_, MemoryCategory::kWorkspace, "workspace", 16 << 20) {
    params_.allocate(*device_, {.compute = compute, .training = false});
    model_.upload_tables(stream_);
    randomize(params_, stream_);
  }

  // [position][id].
  std::vector<std::vector<float>> logits(std::span<const std::int32_t> tokens) {
    const BatchShape shape = {.batch = 1, .seq = static_cast<std::int64_t>(tokens.size())};
    const std::int64_t vocab = model_.spec().vocab;
    const ArenaScope scope(work_);
    const Tensor ids = work_.allocate(DType::kI32, {shape.seq});
    ops::copy_from_host(stream_, tokens.data(), ids);
    const Tensor out = work_.allocate(DType::kF32, {shape.seq, vocab});
    Context ctx{.stream = stream_,
                .saved = saved_,
                .work = work_,
                .kept = work_,
                .recomputed = saved_,
                .units = units_,
                .tensor = alone_};
    model_.logits(ctx, shape, ids, out);
    std::vector<std::vector<float>> rows(tokens.size(), std::vector<float>(static_cast<std::size_t>(vocab)));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ops::copy_to_host(stream_, out.slice(0, static_cast<std::int64_t>(i), 1), rows[i].data());
    }
    return rows;
  }

 private:
  std::unique_ptr<Device> device_;
  Stream stream_;
  ParamStore params_;
  UnitHooks units_;
  TensorGroup alone_;
  Transformer model_;
  Arena saved_;
  Arena work_;
};

std::unique_ptr<InferenceModel> cached_model(const ModelSpec& spec, DType compute,
                                             std::int64_t window = kWindow) {
  auto model = std::make_unique<InferenceModel>(
      spec, compute, InferenceShape{.largest = {.batch = 1, .seq = window}, .cache_positions = window}, 2);
  randomize(model->params(), model->stream());
  return model;
}

void expect_near(const std::vector<float>& values, const std::vector<float>& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  double scale = 0.0;
  for (const float value : expected) scale = std::max(scale, std::abs(static_cast<double>(value)));
  ASSERT_GT(scale, 0.5);  // the logits are not trivial
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], tolerance * scale) << "id " << i;
  }
}

TEST(KeyValueCache, GivesTheLogitsOfTheWholeSequence) {
  for (const auto& [name, spec] : kSpecs) {
    // fp32: sums in another order. bf16: 8 bits, through 2 layers.
    for (const auto& [compute, tolerance] : {std::pair{DType::kF32, 1e-5}, std::pair{DType::kBF16, 0.05}}) {
      const std::vector<std::int32_t> tokens = random_tokens(kWindow, spec.vocab);
      const auto expected = WholeForward(spec, compute).logits(tokens);
      const auto model = cached_model(spec, compute);
      for (const std::vector<std::size_t>& chunks :
           {std::vector<std::size_t>(kWindow, 1), {kWindow}, {1, 7, 1, 1, 10, 4}, {13, 11}}) {
        SCOPED_TRACE(name + ' ' + std::string(name_of(compute)) + ' ' + testing::PrintToString(chunks));
        model->clear_cache();
        std::size_t done = 0;
        for (const std::size_t count : chunks) {
          const std::vector<float> logits = model->next_logits(std::span(tokens).subspan(done, count));
          done += count;
          EXPECT_EQ(model->cached(), static_cast<std::int64_t>(done));
          expect_near(logits, expected[done - 1], tolerance);
        }
      }
      EXPECT_THROW(model->next_logits(std::span(tokens).first(1)), std::logic_error);  // it is full
    }
  }
}

std::int32_t argmax(const std::vector<float>& values) {
  return static_cast<std::int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

// Greedy, one whole pass a token; past the window the older half is forgotten.
std::vector<std::int32_t> greedy(WholeForward& model, std::vector<std::int32_t> text, std::int64_t count) {
  const std::size_t prompt = text.size();
  std::size_t begin = text.size() > kWindow ? text.size() - kWindow : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (text.size() - begin > kWindow) begin = text.size() - kWindow / 2;
    text.push_back(argmax(model.logits(std::span(text).subspan(begin)).back()));
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end()};
}

std::vector<std::int32_t> generated(InferenceModel& model, const std::vector<std::int32_t>& prompt,
                                    std::int64_t count, const SamplingOptions& options) {
  std::vector<std::int32_t> tokens;
  generate(model, prompt, count, options, [&](std::int32_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

TEST(Generate, GreedyIsTheArgmaxOfWholePasses) {
  for (const auto& [name, spec] : kSpecs) {
    WholeForward whole(spec, DType::kF32);
    const auto model = cached_model(spec, DType::kF32);
    for (const std::int64_t length : {1, 5, 23, 24, 25, 70}) {
      const std::vector<std::int32_t> prompt = random_tokens(length, spec.vocab);
      const auto expected = greedy(whole, prompt, 40);
      EXPECT_EQ(generated(*model, prompt, 40, {.temperature = 0.0}), expected) << name << ' ' << length;
      EXPECT_EQ(generated(*model, prompt, 40, {.temperature = 2.0, .top_k = 1}), expected)
          << name << ' ' << length;
    }
  }
}

TEST(Generate, DrawsNoIdBeyondTheTokenizers) {
  const auto model = cached_model(llama(), DType::kF32);
  for (const double temperature : {0.0, 3.0}) {
    const auto free = generated(*model, {5, 6}, 30, {.temperature = temperature});
    EXPECT_GE(*std::max_element(free.begin(), free.end()), 9);
    const auto tokens = generated(*model, {5, 6}, 30, {.temperature = temperature, .vocab = 9});
    EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 9);
    const auto wide = generated(*model, {5, 6}, 30, {.temperature = temperature, .vocab = 1 << 20});
    EXPECT_EQ(wide, free);
  }
}

TEST(Generate, AWindowOfOneTokenWorks) {
  const auto model = cached_model(llama(), DType::kF32, 1);
  EXPECT_EQ(generated(*model, {1, 2, 3}, 5, {.temperature = 0.0}).size(), 5U);
}

TEST(Generate, DependsOnTheSeedAloneAndStopsWhenTold) {
  const auto model = cached_model(llama(), DType::kF32);
  const SamplingOptions options = {.temperature = 3.0, .seed = 11};
  const auto tokens = generated(*model, {5, 6}, 30, options);
  EXPECT_EQ(generated(*model, {5, 6}, 30, options), tokens);
  EXPECT_NE(generated(*model, {5, 6}, 30, {.temperature = 3.0, .seed = 12}), tokens);
  std::vector<std::int32_t> some;
  generate(*model, std::vector<std::int32_t>{5, 6}, 30, options, [&](std::int32_t token) {
    some.push_back(token);
    return some.size() < 4;
  });
  EXPECT_EQ(some, std::vector(tokens.begin(), tokens.begin() + 4));
}

// How often each id comes out over `draws` evenly spread uniform numbers: the probabilities, to one draw.
std::vector<std::int64_t> counts(const std::vector<float>& logits, const SamplingOptions& options,
                                 std::int64_t draws) {
  std::vector<std::int64_t> result(logits.size(), 0);
  for (std::int64_t i = 0; i < draws; ++i) {
    const float uniform = (static_cast<float>(i) + 0.5F) / static_cast<float>(draws);
    ++result[static_cast<std::size_t>(sample_token(logits, options, uniform))];
  }
  return result;
}

void expect_probabilities(const SamplingOptions& options, const std::vector<double>& expected) {
  // Probabilities 0.15, 0.5, 0.05, 0.3 at temperature 1, whatever is added to all logits.
  const std::vector<float> logits = {7.0F + std::log(0.15F), 7.0F + std::log(0.5F), 7.0F + std::log(0.05F),
                                     7.0F + std::log(0.3F)};
  constexpr std::int64_t kDraws = 20000;
  const std::vector<std::int64_t> drawn = counts(logits, options, kDraws);
  double total = 0.0;
  for (const double weight : expected) total += weight;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0.0) {
      EXPECT_EQ(drawn[i], 0) << "id " << i;
    } else {
      EXPECT_NEAR(static_cast<double>(drawn[i]), expected[i] / total * kDraws, 2.0) << "id " << i;
    }
  }
}

TEST(SampleToken, HasTheProbabilitiesOfTheModel) {
  expect_probabilities({.temperature = 1.0}, {0.15, 0.5, 0.05, 0.3});
  expect_probabilities({.temperature = 0.5}, {0.0225, 0.25, 0.0025, 0.09});  // squared
  expect_probabilities({.temperature = 2.0},
                       {std::sqrt(0.15), std::sqrt(0.5), std::sqrt(0.05), std::sqrt(0.3)});
}

TEST(SampleToken, TopKAndTopPCutTheTailAndKeepTheRatios) {
  expect_probabilities({.temperature = 1.0, .top_k = 1}, {0, 1, 0, 0});
  expect_probabilities({.temperature = 1.0, .top_k = 2}, {0, 0.5, 0, 0.3});
  expect_probabilities({.temperature = 1.0, .top_k = 3}, {0.15, 0.5, 0, 0.3});
  expect_probabilities({.temperature = 1.0, .top_k = 100}, {0.15, 0.5, 0.05, 0.3});
  expect_probabilities({.temperature = 1.0, .top_p = 0.01}, {0, 1, 0, 0});
  expect_probabilities({.temperature = 1.0, .top_p = 0.49}, {0, 1, 0, 0});
  expect_probabilities({.temperature = 1.0, .top_p = 0.51}, {0, 0.5, 0, 0.3});
  expect_probabilities({.temperature = 1.0, .top_p = 0.9}, {0.15, 0.5, 0, 0.3});
  expect_probabilities({.temperature = 1.0, .top_p = 0.96}, {0.15, 0.5, 0.05, 0.3});
  // Both: top-p counts what top-k has left, of which 0.5 is five eighths.
  expect_probabilities({.temperature = 1.0, .top_k = 2, .top_p = 0.6}, {0, 1, 0, 0});
}

TEST(SampleToken, HoldsAtTheEnds) {
  const std::vector<float> logits = {1.0F, 3.0F, -std::numeric_limits<float>::infinity(), 3.0F};
  EXPECT_EQ(sample_token(logits, {.temperature = 0.0}, 0.99F), 1);  // the first of equals
  EXPECT_EQ(sample_token(logits, {.temperature = 1.0, .top_k = 1}, 0.99F), 1);
  EXPECT_EQ(sample_token(logits, {.temperature = 1.0}, 0.0F), 1);
  const float last = std::nextafter(1.0F, 0.0F);
  EXPECT_EQ(sample_token(logits, {.temperature = 1.0, .top_k = 2}, last), 3);
  EXPECT_EQ(counts(logits, {.temperature = 50.0}, 1000)[2], 0);
  EXPECT_EQ(sample_token(logits, {.temperature = 1e-30}, last), 3);  // nothing overflows
  EXPECT_EQ(sample_token(std::vector<float>{4.0F}, {.temperature = 1.0}, last), 0);
  const std::vector<float> damaged = {0.0F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THROW(sample_token(damaged, {.temperature = 0.0}, 0.0F), RunError);
}

TEST(SamplingOptions, ThatMakeNoSenseAreRefused) {
  EXPECT_NO_THROW(validate({.temperature = 0.0, .top_k = 0, .top_p = 1.0}));
  EXPECT_THROW(validate({.temperature = -0.1}), UserError);
  EXPECT_THROW(validate({.temperature = std::numeric_limits<double>::infinity()}), UserError);
  EXPECT_THROW(validate({.temperature = std::nan("")}), UserError);
  EXPECT_THROW(validate({.top_k = -1}), UserError);
  EXPECT_THROW(validate({.top_p = 0.0}), UserError);
  EXPECT_THROW(validate({.top_p = 1.1}), UserError);
  EXPECT_THROW(validate({.top_p = std::nan("")}), UserError);
}

}  // namespace
}  // namespace meshtrain
