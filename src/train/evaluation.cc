#include "train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>

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

}  // namespace

Evaluation evaluate(const BatchSampler& sampler, const Tokenizer& tokenizer, std::int64_t sequences,
                    std::int64_t batches, const std::function<EvalResult(const GlobalBatch&)>& run,
                    const std::function<bool()>& stop) {
  const std::int64_t samples = sampler.samples_per_epoch();
  double loss_sum = 0.0;
  Evaluation result;
  for (std::int64_t i = 0; i * sequences < samples && (batches == 0 || i < batches) && !stop(); ++i) {
    const std::int64_t count = std::min(sequences, samples - i * sequences);
    Batch batch = sampler.batch(i * sequences, count);
    batch.tokens.resize(static_cast<std::size_t>(sequences * batch.seq_len), 0);
    batch.targets.resize(batch.tokens.size(), ops::kIgnoredTarget);
    const EvalResult part = run({.tokens = batch.tokens, .targets = batch.targets});
    loss_sum += part.loss_sum;
    result.tokens += part.unmasked_tokens;
    result.bytes += bytes_of(batch.targets, tokenizer);
  }
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  result.nats_per_token = result.tokens > 0 ? loss_sum / static_cast<double>(result.tokens) : kUnknown;
  result.bits_per_byte =
      result.bytes > 0 ? loss_sum / std::numbers::ln2 / static_cast<double>(result.bytes) : kUnknown;
  return result;
}

}  // namespace meshtrain
