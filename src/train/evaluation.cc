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

std::int64_t bytes_of(std::span<const std::int32_t> targets, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> end = tokenizer.end_of_document();
  std::vector<std::int32_t> text;
  text.reserve(targets.size());
  for (const std::int32_t id : targets) {
    if (id != ops::kIgnoredTarget && id != end) text.push_back(id);
  }
  return static_cast<std::int64_t>(tokenizer.decode(text).size());
}

// What one rank found in one micro-batch; plain bytes, which ranks exchange.
struct Part {
  double loss_sum = 0.0;
  std::int64_t tokens = 0;
  std::int64_t bytes = 0;
  std::int64_t stop = 0;
};

// Micro-batch `index`; past the last one it is all masked.
Part evaluate_part(const EvaluationData& data, std::int64_t index,
                   const std::function<EvalResult(const HostBatch&)>& run) {
  const std::int64_t first = index * data.sequences;
  const std::int64_t count =
      std::clamp<std::int64_t>(data.sampler.samples_per_epoch() - first, 0, data.sequences);
  const bool there = count > 0 && (data.batches == 0 || index < data.batches);
  Batch batch = data.sampler.batch(there ? first : 0, there ? count : 1);
  if (!there) std::fill(batch.targets.begin(), batch.targets.end(), ops::kIgnoredTarget);
  batch.tokens.resize(static_cast<std::size_t>(data.sequences * batch.seq_len), 0);
  batch.targets.resize(batch.tokens.size(), ops::kIgnoredTarget);
  const EvalResult result = run({.tokens = batch.tokens, .targets = batch.targets});
  return {.loss_sum = result.loss_sum,
          .tokens = result.unmasked_tokens,
          .bytes = bytes_of(batch.targets, data.tokenizer)};
}

std::vector<Part> of_all_ranks(Communicator* ranks, const Part& own) {
  if (ranks == nullptr) return {own};
  return gather_from_ranks<Part>(*ranks, {&own, 1}, Traffic::kEvaluation);
}

}  // namespace

Evaluation evaluate(const EvaluationData& data, const std::function<EvalResult(const HostBatch&)>& run,
                    const std::function<bool()>& stop, Communicator* ranks) {
  const std::int64_t in_data = (data.sampler.samples_per_epoch() + data.sequences - 1) / data.sequences;
  const std::int64_t batches = data.batches == 0 ? in_data : std::min(in_data, data.batches);
  const std::int64_t at_once = ranks != nullptr ? ranks->size() : 1;
  const std::int64_t rank = ranks != nullptr ? ranks->rank() : 0;
  double loss_sum = 0.0;
  Evaluation result;
  result.interrupted = ranks == nullptr && stop();
  for (std::int64_t i = 0; i < batches && !result.interrupted; i += at_once) {
    Part own = evaluate_part(data, i + rank, run);
    own.stop = stop() && i + at_once < batches ? 1 : 0;
    for (const Part& part : of_all_ranks(ranks, own)) {
      loss_sum += part.loss_sum;
      result.tokens += part.tokens;
      result.bytes += part.bytes;
      result.interrupted = result.interrupted || part.stop != 0;
    }
  }
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  result.nats_per_token = result.tokens > 0 ? loss_sum / static_cast<double>(result.tokens) : kUnknown;
  result.bits_per_byte =
      result.bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(result.bytes) : kUnknown;
  return result;
}

}  // namespace meshtrain
