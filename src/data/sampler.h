// Which tokens a training step sees. A position in a run is a global sample index and nothing else: any
// rank of any mesh finds the same sample under the same index.
#pragma once

#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "data/token_source.h"

namespace meshtrain {

// A bijection of [0, size) keyed by (seed, epoch), in constant memory: a Feistel network over the next
// power of four, walked until it lands inside (Black and Rogaway 2002, "Ciphers with arbitrary finite
// domains", section 5). Its rounds are Philox blocks.
class Permutation {
 public:
  // size in [1, 2^62].
  Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  unsigned half_bits_;
  RandomStream stream_;
};

struct BatchOptions {
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;     // false: in file order, for evaluation
  std::int64_t vocab = 0;  // ids outside [0, vocab) are an error when read
};

struct Batch {
  std::int64_t count = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int32_t> tokens;   // count, seq_len
  std::vector<std::int32_t> targets;  // count, seq_len: the token behind each one
};

// Sample j of the data is tokens [j·seq_len, (j+1)·seq_len] (the last one only as a target, and the first of
// sample j + 1). Sample i of the run is sample permutation(i mod n) of epoch i / n; each epoch sees every
// sample once. Immutable, shared by threads.
class BatchSampler {
 public:
  // Throws UserError when there is not one whole sample. The source must outlive it.
  BatchSampler(const TokenSource& source, const BatchOptions& options);

  std::int64_t seq_len() const { return options_.seq_len; }
  // Samples of one epoch: (size - 1) / seq_len, rounded down.
  std::int64_t samples_per_epoch() const { return samples_; }
  // The sample of the data that sample `i` of the run is.
  std::int64_t data_sample(std::int64_t i) const;
  // Samples first, first + 1, ... of the run. Throws RunError naming file and position for an id outside
  // the vocabulary.
  Batch batch(std::int64_t first, std::int64_t count) const;

 private:
  const TokenSource& source_;
  BatchOptions options_;
  std::int64_t samples_;
};

}  // namespace meshtrain
