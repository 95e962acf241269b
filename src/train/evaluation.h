// Loss over the first tokens of a validation set, in file order: the same ones in the same order, and added in
// that order, whatever the mesh, the micro-batch and the command.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "train/config.h"
#include "train/step.h"

namespace meshtrain {

// Whether a run has evaluations.
inline bool evaluates(const Config& config) {
  return !config.data.valid.empty();
}

struct Evaluation {
  double nats_per_token = 0.0;
  double bits_per_byte = 0.0;  // over the bytes that the predicted tokens stand for
  std::int64_t tokens = 0;     // predicted
  std::int64_t bytes = 0;      // 0: unknown, and bits_per_byte is not a number
  bool interrupted = false;    // before the last sequence
};

struct EvaluationData {
  const BatchSampler& sampler;  // in order, not shuffled
  const Tokenizer& tokenizer;
  std::int64_t micro_batch = 0;  // sequences
  std::int64_t tokens = 0;       // to evaluate, rounded up to whole sequences; 0: all
};

// Sequences that an evaluation of `tokens` covers.
std::int64_t evaluated_sequences(const BatchSampler& sampler, std::int64_t tokens);

// Ranks that evaluate together. Replicas of the model take turns with the micro-batches.
struct EvaluationRanks {
  Communicator* all = nullptr;  // null: one rank alone
  std::int64_t replica = 0;
  std::vector<int> sources = {0};  // for each replica, the rank of `all` that finds the losses
  std::int64_t at_once = 1;        // micro-batches that a replica takes in one turn
};
EvaluationRanks evaluation_ranks(const Assembly& assembly);

// Losses of the sequences of some micro-batches, one after the other.
using EvaluateBatch = std::function<std::vector<EvalResult>(const HostBatch&)>;

// Walks the data in micro-batches; the last one is filled up with masked targets. End-of-document tokens stand
// for no byte. `stop` is asked between turns. All ranks get the result, whose bits depend on the losses of the
// sequences alone: a collective call.
Evaluation evaluate(const EvaluationData& data, const EvaluateBatch& run, const std::function<bool()>& stop,
                    const EvaluationRanks& ranks = {});

}  // namespace meshtrain
