#include "train/run_data.h"

#include <utility>

#include "base/error.h"
#include "train/evaluation.h"

namespace meshtrain {

RunData::RunData(const Config& config, const Tokenizer& tokenizer) {
  if (config.data.train.empty()) {
    throw_user_error("data.train is not set: name a text file, or token files made by `meshtrain tokenize`");
  }
  train_.emplace(open("data.train", config.data.train, /*shuffle=*/true, config, tokenizer));
  if (evaluates(config)) {
    valid_.emplace(open("data.valid", config.data.valid, /*shuffle=*/false, config, tokenizer));
  }
}

Batch rank_batch(const BatchSampler& sampler, const Assembly& assembly, std::int64_t position,
                 const LeftOut& left_out) {
  const std::int64_t sequences = assembly.micro_batch_shape().batch;
  Batch result;
  for (std::int64_t i = 0; i < assembly.micro_steps(); ++i) {
    const std::int64_t first = position + assembly.micro_batch_index(i) * sequences;
    for (const SampleRange& range : left_out.samples_at(first, sequences)) {
      const Batch part = sampler.batch(range.first, range.count);
      result.count += part.count;
      result.seq_len = part.seq_len;
      result.tokens.insert(result.tokens.end(), part.tokens.begin(), part.tokens.end());
      result.targets.insert(result.targets.end(), part.targets.begin(), part.targets.end());
    }
  }
  return result;
}

RunData::Part RunData::open(const std::string& key, const std::string& path, bool shuffle, const Config& config,
                            const Tokenizer& tokenizer) {
  try {
    std::unique_ptr<TokenSource> source = open_token_source(path, &tokenizer);
    check_vocabulary(*source, config.model.vocab);
    BatchSampler sampler(*source, {.seq_len = config.data.seq_len,
                                   .seed = config.train.seed,
                                   .shuffle = shuffle,
                                   .vocab = config.model.vocab});
    return {.source = std::move(source), .sampler = sampler};
  } catch (const UserError& error) {
    throw_user_error("{}: {}", key, error.what());
  }
}

}  // namespace meshtrain
