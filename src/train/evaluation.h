// Loss over a validation set.
#pragma once

#include <cstdint>
#include <functional>

#include "data/sampler.h"
#include "data/tokenizer.h"
#include "train/step.h"

namespace meshtrain {

struct Evaluation {
  double nats_per_token = 0.0;
  double bits_per_byte = 0.0;  // over the bytes that the predicted tokens stand for
  std::int64_t tokens = 0;     // predicted
  std::int64_t bytes = 0;      // 0: unknown, and bits_per_byte is not a number
};

// Walks `sampler` (in order, not shuffled) in micro-batches of `sequences`, at most `batches` of them (0: all;
// what does not fill a micro-batch at the end is filled up with masked targets). End-of-document tokens
// stand for no byte. `stop` is asked between micro-batches.
Evaluation evaluate(const BatchSampler& sampler, const Tokenizer& tokenizer, std::int64_t sequences,
                    std::int64_t batches, const std::function<EvalResult(const GlobalBatch&)>& run,
                    const std::function<bool()>& stop);

}  // namespace meshtrain
