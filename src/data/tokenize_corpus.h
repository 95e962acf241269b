// Text files to token files: what `meshtrain tokenize` does, and what training on a text file does at its
// start.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace meshtrain {

struct CorpusOptions {
  std::string text_field = "text";  // of .jsonl
  int threads = 0;                  // 0: all cores that this process may use
  std::size_t chunk_bytes = std::size_t{1} << 20U;
};

struct CorpusStats {
  std::int64_t documents = 0;
  std::int64_t empty_documents = 0;  // left out
  std::int64_t tokens = 0;           // with one end-of-document token a document
  std::int64_t text_bytes = 0;       // of the documents
  std::int64_t input_bytes = 0;
  std::int64_t json_lines = 0;  // without blank ones
  std::int64_t malformed_lines = 0;
  std::vector<std::string> malformed;  // the first few, as file:line: reason
};

// Gets ids in corpus order. ends[i] is where in `ids` a document ends, end-of-document token included; ids
// behind the last end belong to a document that goes on with the next call.
using IdSink = std::function<void(std::span<const std::int32_t> ids, std::span<const std::int64_t> ends)>;
// Called now and then with what has been done so far and the bytes of all input files.
using CorpusProgress = std::function<void(const CorpusStats&, std::int64_t total_bytes)>;

// Documents are whole text files and lines of .jsonl; each is followed by the tokenizer's end-of-document
// token. The ids do not depend on the number of threads or on chunk_bytes. A long text file is cut only
// where Tokenizer::split_point allows, otherwise one core encodes it. Throws UserError when an input cannot
// be read or is no text.
CorpusStats tokenize_corpus(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                            const CorpusOptions& options, const IdSink& sink,
                            const CorpusProgress& progress = nullptr);

// The same into PREFIX.bin and PREFIX.idx, which appear whole or not at all. Throws RunError when every
// line was malformed or the disk is full, UserError when there was no text at all.
CorpusStats tokenize_to_files(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                              const CorpusOptions& options, const std::string& prefix,
                              const CorpusProgress& progress = nullptr);

// What a run over text says when it is done, e.g. about malformed lines; empty when there is nothing.
std::string malformed_report(const CorpusStats& stats);

}  // namespace meshtrain
