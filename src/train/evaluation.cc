#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

#include "comm/agreement.h"
#include "ops/cross_entropy.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kUnknownBytes = -1;

// kUnknownBytes where an id is none of the tokenizer's: there is none, or the tokens were made with another.
std::int64_t bytes_of(std::span<const std::int32_t> targets, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> end = tokenizer.end_of_document();
  std::vector<std::int32_t> text;
  text.reserve(targets.size());
  for (const std::int32_t id : targets) {
    if (id == ops::kIgnoredTarget || id == end) continue;
    if (id >= tokenizer.vocab_size()) return kUnknownBytes;
    text.push_back(id);
  }
  return static_cast<std::int64_t>(tokenizer.decode(text).size());
}

// What one rank found in one micro-batch; plain bytes, which ranks exchange.
struct Part {
  double loss_sum = 0.0;
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::int64_t stop = 0;  // in the first of a turn
};

// Appends micro-batch `index`; past the last one it is all masked.
void append_micro_batch(const EvaluationData& data, std::int64_t index, Batch& batch) {
  const std::int64_t first = index * data.sequences;
  const std::int64_t count =
      std::clamp<std::int64_t>(data.sampler.samples_per_epoch() - first, 0, data.sequences);
  const bool there = count > 0 && (data.batches == 0 || index < data.batches);
  Batch micro = data.sampler.batch(there ? first : 0, there ? count : 1);
  if (!there) std::fill(micro.targets.begin(), micro.targets.end(), ops::kIgnoredTarget);
  micro.tokens.resize(static_cast<std::size_t>(data.sequences * micro.seq_len), 0);
  micro.targets.resize(micro.tokens.size(), ops::kIgnoredTarget);
  batch.tokens.insert(batch.tokens.end(), micro.tokens.begin(), micro.tokens.end());
  batch.targets.insert(batch.targets.end(), micro.targets.begin(), micro.targets.end());
}

// One turn of one replica, which begins at micro-batch `first`: every replica's next one is `stride` further.
std::vector<Part> evaluate_turn(const EvaluationData& data, std::int64_t first, std::int64_t stride,
                                std::int64_t count, const EvaluateBatch& run) {
  Batch batch;
  for (std::int64_t i = 0; i < count; ++i) append_micro_batch(data, first + i * stride, batch);
  const std::vector<EvalResult> results = run({.tokens = batch.tokens, .targets = batch.targets});
  const std::size_t tokens = batch.targets.size() / results.size();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < results.size(); ++i) {
    parts.push_back({.loss_sum = results[i].loss_sum,
                     .tokens = results[i].unmasked_tokens,
                     .bytes = bytes_of(std::span(batch.targets).subspan(i * tokens, tokens), data.tokenizer)});
  }
  return parts;
}

std::vector<Part> of_all_ranks(Communicator* ranks, const std::vector<Part>& own) {
  return ranks == nullptr ? own : gather_from_ranks<Part>(*ranks, own, Traffic::kEvaluation);
}

}  // namespace

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
  const std::int64_t in_data = (data.sampler.samples_per_epoch() + data.sequences - 1) / data.sequences;
  const std::int64_t batches = data.batches == 0 ? in_data : std::min(in_data, data.batches);
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
    for (std::size_t turn = 0; turn < own.size(); ++turn) {
      for (const int source : ranks.sources) {
        const Part& part = all[static_cast<std::size_t>(source) * own.size() + turn];
        loss_sum += part.loss_sum;
        result.tokens += part.tokens;
        unknown = unknown || part.bytes == kUnknownBytes;
        result.bytes += part.bytes;
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
