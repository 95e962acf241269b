#include "train/generation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "base/stopwatch.h"

namespace meshtrain {

void validate(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw_user_error("--temperature {} must be 0 or more", options.temperature);
  }
  if (options.top_k < 0) throw_user_error("--top-k {} must be 0 (all tokens) or more", options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw_user_error("--top-p {} must be above 0 and at most 1", options.top_p);
  }
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, float uniform) {
  for (const float logit : logits) {
    if (std::isnan(logit)) throw_run_error("the model's predictions are not numbers: its weights are damaged");
  }
  if (options.temperature == 0.0) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<std::size_t>(options.top_k));
  } else {
    std::sort(order.begin(), order.end(), likelier);
  }

  const double highest = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weights;
  weights.reserve(order.size());
  for (const std::int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - highest) / options.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0.0;
  std::size_t count = 0;
  while (count < weights.size() && kept < options.top_p * total) kept += weights[count++];
  total = kept;

  double left = static_cast<double>(uniform) * total;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    if (left < weights[i]) return order[i];
    left -= weights[i];
  }
  return order[count - 1];
}

GenerationTimes generate(InferenceModel& model, std::span<const std::int32_t> prompt, std::int64_t count,
                         const SamplingOptions& options, const std::function<bool(std::int32_t)>& emit) {
  check(!prompt.empty(), "generation needs a token to start from");
  const RandomStream random(options.seed, "generate");
  const auto window = static_cast<std::size_t>(model.context());
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  // The part of `text` that the cache does not hold yet.
  std::size_t fresh = text.size() > window ? text.size() - window : 0;
  model.clear_cache();
  GenerationTimes times;
  const Stopwatch watch;
  for (std::int64_t i = 0; i < count; ++i) {
    if (static_cast<std::size_t>(model.cached()) + (text.size() - fresh) > window) {
      model.clear_cache();
      fresh = text.size() - std::max<std::size_t>(window / 2, 1);
    }
    const std::vector<float> all = model.next_logits(std::span(text).subspan(fresh));
    const std::size_t vocab = options.vocab == 0 ? all.size() : static_cast<std::size_t>(options.vocab);
    const std::span logits = std::span(all).first(std::min(vocab, all.size()));
    fresh = text.size();
    const std::int32_t token = sample_token(logits, options, random.uniform(static_cast<std::uint64_t>(i)));
    ++times.tokens;
    if (i == 0) {
      times.prompt_tokens = model.cached();
      times.prompt_seconds = watch.seconds();
    }
    times.seconds = watch.seconds() - times.prompt_seconds;
    if (!emit(token)) break;
    text.push_back(token);
  }
  return times;
}

}  // namespace meshtrain
