// Loss over a validation set.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "train/step.h"

namespace meshtrain {

struct Evaluation {
  double nats_per_token = 0.0;
  double bits_per_byte = 0.0;  // over the bytes that the predicted tokens stand for
  std::int64_t tokens = 0;     // predicted
  std::int64_t bytes = 0;      // 0: unknown, and bits_per_byte is not a number
  bool interrupted = false;    // before the last batch
};

struct EvaluationData {
  const BatchSampler& sampler;  // in order, not shuffled
  const Tokenizer& tokenizer;
  std::int64_t sequences = 0;  // a micro-batch
  std::int64_t batches = 0;    // at most so many micro-batches; 0: all
};

// Walks the data in micro-batches; what does not fill one at the end is filled up with masked targets.
// End-of-document tokens stand for no byte. `stop` is asked between micro-batches. With `ranks`, these take
// turns and all get the result, whose bits are those of one rank: a collective call.
Evaluation evaluate(const EvaluationData& data, const std::function<EvalResult(const HostBatch&)>& run,
                    const std::function<bool()>& stop, Communicator* ranks = nullptr);

}  // namespace meshtrain
