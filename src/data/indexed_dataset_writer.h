// Writes Megatron's indexed data set (see indexed_dataset.h), streaming: memory grows by 12 bytes a document.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/output_file.h"

namespace meshtrain {

class IndexedDatasetWriter {
 public:
  // A document is one sequence; one longer than `longest_sequence` (a length is an i32) becomes several
  // sequences of one document. Throws UserError when the files cannot be created.
  IndexedDatasetWriter(const std::string& prefix, std::int64_t vocab, std::int64_t longest_sequence = 1 << 30);

  // Adds ids in [0, vocab) to the document that is open. Throws RunError when the disk is full.
  void add(std::span<const std::int32_t> ids);
  void end_document();
  // Writes the index and gives both files their names, so that no reader ever sees a new .bin with an old
  // .idx. Without it, nothing is left. The document must have ended.
  void commit();

  TokenType type() const { return type_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_starts_.size()) - 1; }
  std::int64_t tokens() const { return tokens_; }

 private:
  void end_sequence();

  std::string prefix_;
  std::int64_t vocab_;
  std::int64_t longest_sequence_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_starts_ = {0};
  std::vector<std::uint16_t> narrow_;
  std::int64_t open_tokens_ = 0;  // of the open sequence
  std::int64_t tokens_ = 0;
};

}  // namespace meshtrain
