// Evaluation with a made-up model: which sequences are seen, in which order their losses are added, and what
// counts.
#include "train/evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>

#include "base/philox.h"
#include "comm_ranks.h"
#include "ops/cross_entropy.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kSeq = 5;
constexpr std::int32_t kEnd = 256;  // of a document, with the tokenizer of bytes

// The text that samples of the data lie in: every seventh token ends a document.
std::vector<std::int32_t> text(std::int64_t samples) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i <= samples * kSeq; ++i) {
    ids.push_back(i % 7 == 6 ? kEnd : static_cast<std::int32_t>(i * i % 251));
  }
  return ids;
}

// Of many magnitudes, so that every order of additions shows.
double token_loss(std::int32_t token, std::int32_t target) {
  const RandomStream random(static_cast<std::uint64_t>(token), "loss");
  return random.normal(static_cast<std::uint64_t>(target)) * std::pow(10.0, token % 9 - 4);
}

EvalResult sequence_loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  EvalResult result;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (targets[i] == ops::kIgnoredTarget) continue;
    result.loss_sum += token_loss(tokens[i], targets[i]);
    ++result.unmasked_tokens;
  }
  return result;
}

std::vector<EvalResult> losses_of(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  std::vector<EvalResult> results;
  for (std::size_t at = 0; at < tokens.size(); at += kSeq) {
    results.push_back(sequence_loss(tokens.subspan(at, kSeq), targets.subspan(at, kSeq)));
  }
  return results;
}

// The first `sequences` of the text, one after the other.
Evaluation expected(std::int64_t samples, std::int64_t sequences) {
  const std::vector<std::int32_t> ids = text(samples);
  double loss_sum = 0.0;
  Evaluation result;
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::span tokens = std::span(ids).subspan(i * kSeq, kSeq);
    const std::span targets = std::span(ids).subspan(i * kSeq + 1, kSeq);
    loss_sum += sequence_loss(tokens, targets).loss_sum;
    result.tokens += kSeq;
    result.bytes += std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id != kEnd; });
  }
  result.nats_per_token = loss_sum / static_cast<double>(result.tokens);
  result.bits_per_byte = loss_sum / std::numbers::ln2 / static_cast<double>(result.bytes);
  return result;
}

struct Dealt {
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::int64_t micro_batch = 3;
  std::int64_t replicas = 1;
  std::int64_t at_once = 1;
  std::int64_t stages = 1;     // ranks of a replica, of which the last one finds the losses
  std::int64_t stops_at = -1;  // the question to which one rank says yes; -1: never
};

// On every rank.
std::vector<Evaluation> evaluate_on_ranks(const Dealt& run) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  const MemoryTokens source("text", text(run.samples));
  const BatchSampler sampler(source, {.seq_len = kSeq, .shuffle = false, .vocab = 257});
  const EvaluationData data = {
      .sampler = sampler, .tokenizer = *tokenizer, .micro_batch = run.micro_batch, .tokens = run.tokens};
  std::vector<Evaluation> results(static_cast<std::size_t>(run.replicas * run.stages));
  const auto failures = testing::run_threads(static_cast<int>(results.size()), {}, [&](World& world) {
    const std::unique_ptr<Communicator> all = world.everyone("all");
    const bool last_stage = world.rank() / run.replicas == run.stages - 1;
    EvaluationRanks ranks = {.all = all.get(),
                             .replica = world.rank() % run.replicas,
                             .sources = std::vector<int>(static_cast<std::size_t>(run.replicas)),
                             .at_once = run.at_once};
    std::iota(ranks.sources.begin(), ranks.sources.end(), static_cast<int>(run.replicas * (run.stages - 1)));
    std::vector<std::string> wrong;
    std::int64_t asked = 0;
    const auto stop = [&] { return world.rank() == 0 && asked++ == run.stops_at; };
    const EvaluateBatch losses = [&](const HostBatch& batch) {
      const auto tokens = static_cast<std::size_t>(run.micro_batch * kSeq);
      if (batch.tokens.size() % tokens != 0 || batch.tokens.size() / tokens > std::size_t(run.at_once))
        wrong.push_back(fmt::format("{} tokens", batch.tokens.size()));
      std::vector<EvalResult> found = losses_of(batch.tokens, batch.targets);
      for (EvalResult& result : found) {
        if (!last_stage) result.loss_sum = 0.0;
      }
      return found;
    };
    results[static_cast<std::size_t>(world.rank())] = evaluate(data, losses, stop, ranks);
    return wrong;
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
  }
  return results;
}

void expect_equal(const Evaluation& found, const Evaluation& expected) {
  EXPECT_EQ(found.nats_per_token, expected.nats_per_token);
  EXPECT_EQ(found.bits_per_byte, expected.bits_per_byte);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.bytes, expected.bytes);
}

// Micro-batches that are half full at the end, turns that are too, and replicas without any.
TEST(Evaluation, HasTheBitsOfOneSequenceAfterTheOtherHoweverTheyAreDealt) {
  const auto expect_sequences = [](const Dealt& run, std::int64_t sequences) {
    SCOPED_TRACE(fmt::format("{} samples, {} tokens, micro-batch {}, {} replicas of {} stages, {} at once",
                             run.samples, run.tokens, run.micro_batch, run.replicas, run.stages, run.at_once));
    for (const Evaluation& of_rank : evaluate_on_ranks(run)) {
      expect_equal(of_rank, expected(run.samples, sequences));
      EXPECT_FALSE(of_rank.interrupted);
    }
  };
  for (const std::int64_t samples : {1, 3, 10, 23}) {
    for (const std::int64_t micro_batch : {1, 3, 4}) {
      for (const std::int64_t replicas : {1, 2, 3}) {
        for (const std::int64_t stages : {1, 2}) {
          for (const std::int64_t at_once : {1, 2, 5}) {
            Dealt run = {.samples = samples,
                         .micro_batch = micro_batch,
                         .replicas = replicas,
                         .at_once = at_once,
                         .stages = stages};
            expect_sequences(run, samples);
            run.tokens = 41;  // of 9 sequences of 5
            expect_sequences(run, std::min<std::int64_t>(samples, 9));
          }
        }
      }
    }
  }
}

TEST(Evaluation, CoversWholeSequencesFromTheStart) {
  const MemoryTokens source("text", text(7));
  const BatchSampler sampler(source, {.seq_len = kSeq, .shuffle = false, .vocab = 257});
  const auto covered = [&](std::int64_t tokens) { return evaluated_sequences(sampler, tokens); };
  EXPECT_EQ(covered(0), 7);
  EXPECT_EQ(covered(1), 1);
  EXPECT_EQ(covered(5), 1);
  EXPECT_EQ(covered(6), 2);
  EXPECT_EQ(covered(35), 7);
  EXPECT_EQ(covered(36), 7);
  EXPECT_EQ(covered(std::numeric_limits<std::int64_t>::max()), 7);
}

// Of one token among many no bytes are known: then none are.
TEST(Evaluation, WithIdsThatTheTokenizerLacksHasNoBitsPerByte) {
  const std::unique_ptr<Tokenizer> bytes = make_tokenizer("bytes");
  const std::unique_ptr<Tokenizer> none = make_tokenizer("none");
  std::vector<std::int32_t> ids = text(10);
  const auto evaluated = [&](const Tokenizer& tokenizer) {
    const MemoryTokens source("text", ids);
    const BatchSampler sampler(source, {.seq_len = kSeq, .shuffle = false, .vocab = 300});
    return evaluate(
        {.sampler = sampler, .tokenizer = tokenizer, .micro_batch = 3},
        [](const HostBatch& batch) { return losses_of(batch.tokens, batch.targets); }, [] { return false; });
  };
  EXPECT_GT(evaluated(*bytes).bytes, 0);
  const Evaluation without = evaluated(*none);
  EXPECT_EQ(without.bytes, 0);
  EXPECT_TRUE(std::isnan(without.bits_per_byte));
  EXPECT_EQ(without.nats_per_token, evaluated(*bytes).nats_per_token);
  ids[30] = 257;
  EXPECT_EQ(evaluated(*bytes).bytes, 0);
  EXPECT_TRUE(std::isfinite(evaluated(*bytes).nats_per_token));
}

// Decodes "12" to " one two": as SentencePiece does, without the space that a text begins with.
class SpacedWords final : public Tokenizer {
 public:
  std::string name() const override { return "words"; }
  std::int64_t vocab_size() const override { return 300; }
  std::optional<std::int32_t> end_of_document() const override { return kEnd; }
  std::unique_ptr<Encoder> encoder() const override { return nullptr; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += " w" + std::string(static_cast<std::size_t>(id % 3), 'x');
    return text.empty() ? text : text.substr(1);
  }
  bool is_special(std::int32_t id) const override { return id == kEnd; }
  std::size_t split_point(std::string_view text, std::size_t) const override { return text.size(); }
};

// Two documents of 11 and 9 words; the first token of all is no target.
TEST(Evaluation, CountsTheBytesOfDocumentsWhereverSequencesCutThem) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 11; ++i) ids.push_back(i);
  ids.push_back(kEnd);
  for (std::int32_t i = 0; i < 9; ++i) ids.push_back(i);
  const SpacedWords words;
  const std::span all(ids);
  const std::size_t bytes =
      words.decode(all.first(11)).size() - words.decode(all.first(1)).size() + words.decode(all.last(9)).size();
  const MemoryTokens source("text", ids);
  for (const std::int64_t seq_len : {1, 2, 4, 5, 10, 20}) {  // divide the 20 targets
    for (const std::int64_t micro_batch : {1, 3}) {
      const BatchSampler sampler(source, {.seq_len = seq_len, .shuffle = false, .vocab = 300});
      const Evaluation result = evaluate(
          {.sampler = sampler, .tokenizer = words, .micro_batch = micro_batch},
          [&](const HostBatch& batch) {
            return std::vector<EvalResult>(batch.tokens.size() / static_cast<std::size_t>(seq_len));
          },
          [] { return false; });
      EXPECT_EQ(result.bytes, static_cast<std::int64_t>(bytes)) << seq_len;
    }
  }
}

// 8 micro-batches in turns of 2 x 1: stopped after the second turn.
TEST(Evaluation, StopsOnAllRanksTogetherWhenOneWishesTo) {
  for (const Evaluation& of_rank :
       evaluate_on_ranks({.samples = 24, .replicas = 2, .stages = 2, .stops_at = 1})) {
    EXPECT_TRUE(of_rank.interrupted);
    expect_equal(of_rank, expected(24, 4 * 3));
  }
  // Once all is done there is nothing left to interrupt.
  for (const Evaluation& of_rank :
       evaluate_on_ranks({.samples = 24, .replicas = 2, .stages = 2, .stops_at = 3})) {
    EXPECT_FALSE(of_rank.interrupted);
    expect_equal(of_rank, expected(24, 24));
  }
}

TEST(Evaluation, OneRankAloneMayStopBeforeItBegins) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("bytes");
  const MemoryTokens source("text", text(4));
  const BatchSampler sampler(source, {.seq_len = kSeq, .shuffle = false, .vocab = 257});
  const EvaluationData data = {.sampler = sampler, .tokenizer = *tokenizer, .micro_batch = 3};
  const EvaluateBatch never = [](const HostBatch&) -> std::vector<EvalResult> {
    throw std::logic_error("evaluated");
  };
  const Evaluation result = evaluate(data, never, [] { return true; });
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.tokens, 0);
  EXPECT_TRUE(std::isnan(result.nats_per_token) && std::isnan(result.bits_per_byte));
}

}  // namespace
}  // namespace meshtrain
