#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

#include "base/error.h"
#include "comm/agreement.h"
#include "ops/cross_entropy.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kUnknownBytes = -1;

std::int64_t decoded_size(const std::vector<std::int32_t>& ids, const Tokenizer& tokenizer) {
  return ids.empty() ? 0 : static_cast<std::int64_t>(tokenizer.decode(ids).size());
}

// Bytes that the targets of one sequence stand for. Each document is decoded by itself, and the targets behind
// the sequence's first token with it: the first piece of a text may lose its leading space. kUnknownBytes where
// an id is none of the tokenizer's: there is none, or the tokens were made with another.
std::int64_t bytes_of(std::int32_t first, std::span<const std::int32_t> targets, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> end = tokenizer.end_of_document();
  const auto is_known = [&](std::int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); };
  std::vector<std::int32_t> text;
  if (first != end && is_known(first)) text.push_back(first);
  std::int64_t bytes = -decoded_size(text, tokenizer);
  for (const std::int32_t id : targets) {
    if (id == ops::kIgnoredTarget) continue;
    if (id == end) {
      bytes += decoded_size(text, tokenizer);
      text.clear();
      continue;
    }
    if (!is_known(id)) return kUnknownBytes;
    text.push_back(id);
  }
  return bytes + decoded_size(text, tokenizer);
}

// What one rank found in one sequence; plain bytes, which ranks exchange.
struct Part {
  double loss_sum = 0.0;
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::int64_t stop = 0;  // in the first of a turn
};

// Appends micro-batch `index`; past the last sequence it is masked.
void append_micro_batch(const EvaluationData& data, std::int64_t index, Batch& batch) {
  const std::int64_t first = index * data.micro_batch;
  const std::int64_t count =
      std::clamp<std::int64_t>(evaluated_sequences(data.sampler, data.tokens) - first, 0, data.micro_batch);
  Batch micro = data.sampler.batch(first, count);
  micro.tokens.resize(static_cast<std::size_t>(data.micro_batch * data.sampler.seq_len()), 0);
  micro.targets.resize(micro.tokens.size(), ops::kIgnoredTarget);
  batch.tokens.insert(batch.tokens.end(), micro.tokens.begin(), micro.tokens.end());
  batch.targets.insert(batch.targets.end(), micro.targets.begin(), micro.targets.end());
}

// The sequences of one turn of one replica, which begins at micro-batch `first`: every replica's next one is
// `stride` further.
std::vector<Part> evaluate_turn(const EvaluationData& data, std::int64_t first, std::int64_t stride,
                                std::int64_t count, const EvaluateBatch& run) {
  Batch batch;
  for (std::int64_t i = 0; i < count; ++i) append_micro_batch(data, first + i * stride, batch);
  const std::vector<EvalResult> results = run({.tokens = batch.tokens, .targets = batch.targets});
  const auto seq_len = static_cast<std::size_t>(data.sampler.seq_len());
  check(results.size() * seq_len == batch.targets.size(), "an evaluation gives one result a sequence");
  std::vector<Part> parts;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::span targets = std::span(batch.targets).subspan(i * seq_len, seq_len);
    parts.push_back({.loss_sum = results[i].loss_sum,
                     .tokens = results[i].unmasked_tokens,
                     .bytes = bytes_of(batch.tokens[i * seq_len], targets, data.tokenizer)});
  }
  return parts;
}

std::vector<Part> of_all_ranks(Communicator* ranks, const std::vector<Part>& own) {
  return ranks == nullptr ? own : gather_from_ranks<Part>(*ranks, own, Traffic::kEvaluation);
}

}  // namespace

std::int64_t evaluated_sequences(const BatchSampler& sampler, std::int64_t tokens) {
  const std::int64_t seq_len = sampler.seq_len();
  const std::int64_t all = sampler.samples_per_epoch();
  return tokens == 0 ? all : std::min(all, tokens / seq_len + (tokens % seq_len != 0 ? 1 : 0));
}

EvaluationRanks evaluation_ranks(const Assembly& assembly) {
  const MeshConfig& mesh = assembly.config().mesh;
  EvaluationRanks ranks{.all = assembly.groups.control.get(),
                        .replica = assembly.groups.place("dp"),
                        .sources = {},
                        // Enough to keep all stages busy most of the time.
                        .at_once = mesh.pp > 1 ? 4 * mesh.pp : 1};
  for (std::int64_t replica = 0; replica < mesh.dp; ++replica) {
    ranks.sources.push_back(static_cast<int>(rank_at(mesh, 0, replica, mesh.pp - 1)));
  }
  return ranks;
}

Evaluation evaluate(const EvaluationData& data, const EvaluateBatch& run, const std::function<bool()>& stop,
                    const EvaluationRanks& ranks) {
  const std::int64_t batches =
      (evaluated_sequences(data.sampler, data.tokens) + data.micro_batch - 1) / data.micro_batch;
  const auto replicas = static_cast<std::int64_t>(ranks.sources.size());
  const std::int64_t at_once = std::min(ranks.at_once, (batches + replicas - 1) / replicas);
  double loss_sum = 0.0;
  bool unknown = false;
  Evaluation result;
  result.interrupted = ranks.all == nullptr && stop();
  for (std::int64_t i = 0; i < batches && !result.interrupted; i += replicas * at_once) {
    std::vector<Part> own = evaluate_turn(data, i + ranks.replica, replicas, at_once, run);
    own.front().stop = stop() && i + replicas * at_once < batches ? 1 : 0;
    const std::vector<Part> all = of_all_ranks(ranks.all, own);
    const auto in_micro_batch = static_cast<std::size_t>(data.micro_batch);
    for (std::size_t first = 0; first < own.size(); first += in_micro_batch) {
      for (const int source : ranks.sources) {
        const std::size_t at = static_cast<std::size_t>(source) * own.size() + first;
        for (const Part& part : std::span(all).subspan(at, in_micro_batch)) {
          loss_sum += part.loss_sum;
          result.tokens += part.tokens;
          unknown = unknown || part.bytes == kUnknownBytes;
          result.bytes += part.bytes;
        }
      }
    }
    for (const Part& part : all) result.interrupted = result.interrupted || part.stop != 0;
  }
  if (unknown) result.bytes = 0;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  result.nats_per_token = result.tokens > 0 ? loss_sum / static_cast<double>(result.tokens) : kUnknown;
  result.bits_per_byte =
      result.bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(result.bytes) : kUnknown;
  return result;
}

}  // namespace meshtrain
