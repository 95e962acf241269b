// The token files of a run.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/sampler.h"
#include "data/token_source.h"
#include "data/tokenizer.h"
#include "train/assembly.h"
#include "train/config.h"
#include "train/left_out.h"

namespace meshtrain {

// Opens what data.train and data.valid name and checks it against the model's vocabulary and the length of
// a sample. Throws UserError that begins with the key.
class RunData {
 public:
  RunData(const Config& config, const Tokenizer& tokenizer);

  const BatchSampler& train() const { return train_->sampler; }
  std::int64_t train_tokens() const { return train_->source->size(); }
  // Null: data.valid is not set.
  const BatchSampler* valid() const { return valid_ ? &valid_->sampler : nullptr; }

 private:
  struct Part {
    std::unique_ptr<TokenSource> source;
    BatchSampler sampler;
  };
  static Part open(const std::string& key, const std::string& path, bool shuffle, const Config& config,
                   const Tokenizer& tokenizer);

  std::optional<Part> train_;
  std::optional<Part> valid_;
};

// This rank's micro-batches of the step whose global batch begins at position `position` of a run that leaves
// these samples out.
Batch rank_batch(const BatchSampler& sampler, const Assembly& assembly, std::int64_t position,
                 const LeftOut& left_out = {});

}  // namespace meshtrain
