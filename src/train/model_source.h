// Where a run's first weights come from when they are not random, or those to use: a Hugging Face folder, or a
// checkpoint of any mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/huggingface/token_ids.h"
#include "checkpoint/weight_source.h"
#include "train/assembly.h"
#include "train/config.h"

namespace meshtrain {

// What is known before a weight is read.
struct ModelDescription {
  ModelSpec spec;
  std::string tokenizer;  // as data.tokenizer; "none" of a folder that has none
};

// Of a Hugging Face folder, a checkpoint, or a run folder (its newest checkpoint). Throws UserError naming it.
ModelDescription describe_model(const std::string& path);
// Its weights: everything but their values is checked.
std::unique_ptr<WeightSource> open_weights(const std::string& path);

// The config of a Hugging Face folder without any other: its model, its tokenizer where it has one, sequences
// of its context but at most kFolderSeqLen, and computing in the type that its weights have.
inline constexpr std::int64_t kFolderSeqLen = 1024;
Config config_of_folder(const std::string& folder, const std::vector<std::string>& overrides);

// A checkpoint that was made of a folder carries the folder's tokenizer in a folder of its own, and names it
// relative to itself: "tokenizer/tokenizer.json".
inline constexpr const char* kTokenizerFolder = "tokenizer";
// That name of the tokenizer that `folder` has; "bytes" or "none" where it has no file of one.
std::string carried_tokenizer(const std::string& folder, const ModelSpec& spec);
// The tokenizer of a checkpoint's config where the checkpoint lies now.
std::string with_carried_tokenizer(const std::string& tokenizer, const Checkpoint& checkpoint);

// Of the Hugging Face folder that the weights began with: by an import, or as model.from of its run or of an
// earlier one. nullopt where they began with none.
std::optional<HfTokenIds> hf_token_ids_of(const Checkpoint& checkpoint);

// Throws UserError, naming the key and both values, where a model differs from that whose weights it is to
// have. Keys that change no weight's shape or place may: model.context of llama, the rotary positions, norm_eps
// and init_std.
void check_model_of_source(const ModelSpec& spec, const ModelSpec& source, const std::string& path);

// A new run's weights: those that model.from names, with its token_ids, or random ones of the seed. A
// collective call.
void initialize_weights(Assembly& assembly);

}  // namespace meshtrain
