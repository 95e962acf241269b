// Sampling from a model's predictions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/inference.h"

namespace meshtrain {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // sample among the k likeliest; 0: all
  double top_p = 1.0;        // and among the fewest whose probabilities reach p (Holtzman et al. 2020)
  std::uint64_t seed = 1;
  // Ids from here on are never drawn: a model can have more rows than its tokenizer has tokens. 0: all are.
  std::int64_t vocab = 0;
};
// Throws UserError for values that make no sense.
void validate(const SamplingOptions& options);

// Draws one token; `uniform` is in [0, 1).
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, float uniform);

// How long a generation took. The first token comes with the prompt's time, for its predictions do.
struct GenerationTimes {
  std::int64_t prompt_tokens = 0;  // of the prompt, as many as fit the window
  double prompt_seconds = 0.0;
  std::int64_t tokens = 0;  // drawn
  double seconds = 0.0;     // for those after the first
};

// Continues `prompt` (not empty) by up to `count` tokens, each handed to `emit`, which may stop the
// generation by returning false. When the cache is full the older half of the window is forgotten.
// The i-th draw depends on (seed, i) alone.
GenerationTimes generate(InferenceModel& model, std::span<const std::int32_t> prompt, std::int64_t count,
                         const SamplingOptions& options, const std::function<bool(std::int32_t)>& emit);

}  // namespace meshtrain
