// SentencePiece models: loading one and training one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace meshtrain {

// The end-of-document token is the piece `eod` where given, else the model's </s>, else none.
// SentencePiece looks at a text as a whole, with memory to match; so a text is encoded in parts, each at
// least 1 MiB and cut behind a line feed. A model that puts a space before each text does so for each part.
// Throws UserError.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path, const std::string& eod = "");

struct SentencePieceTraining {
  std::int64_t vocab = 32000;
  std::string type = "bpe";  // or "unigram"
  int threads = 1;
  // Longer inputs are sampled.
  std::int64_t max_sentences = 5'000'000;
};

// Gives one line after the other; false at the end.
using LineSource = std::function<bool(std::string&)>;

// Trains on the lines of open_lines(), which is called twice, and returns the model file's content. Text
// comes back from its ids byte for byte: no normalization, no space added or removed, rare characters as
// bytes; only U+2581 comes back as a space. `what` names the input in errors. Throws UserError when the input
// is too small for the vocabulary, or empty.
std::string train_sentencepiece(const std::function<LineSource()>& open_lines,
                                const SentencePieceTraining& options, const std::string& what);

}  // namespace meshtrain
