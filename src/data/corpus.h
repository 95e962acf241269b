// Text to be tokenized: files of text, one document each, and .jsonl files, one document a line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "data/tokenizer.h"

namespace meshtrain {

enum class CorpusKind : std::uint8_t { kText, kJsonLines };

// .jsonl and .ndjson are JSON lines; everything else is text.
CorpusKind corpus_kind(const std::string& path);

// The document of one line of JSON: the string in `field` of the object. None when the line holds no such
// thing; `reason` then says why, for people.
std::optional<std::string> json_line_text(std::string_view line, const std::string& field, std::string& reason);

// A part of a corpus that one thread encodes by itself.
struct CorpusChunk {
  std::shared_ptr<const MappedFile> file;
  const std::string* path = nullptr;
  CorpusKind kind = CorpusKind::kText;
  std::string_view text;      // of kJsonLines: whole lines
  bool ends_document = true;  // of kText: nothing of this file follows
};

// Cuts files into chunks, in order: JSON lines between lines, text where the tokenizer allows it. Holds one
// file at a time.
class CorpusReader {
 public:
  // Checks that every input can be read and is no compressed or binary file. Throws UserError.
  CorpusReader(std::vector<std::string> paths, std::size_t chunk_bytes);

  // None at the end. Chunks keep what they need alive, but not longer than the reader.
  std::optional<CorpusChunk> next(const Tokenizer& tokenizer);
  // Of all files; pipes count 0.
  std::int64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<std::string> paths_;
  std::size_t chunk_bytes_;
  std::int64_t total_bytes_ = 0;
  std::size_t next_path_ = 0;
  std::shared_ptr<const MappedFile> file_;  // null: open the next one
  std::size_t at_ = 0;
};

// The lines of a corpus: of text files, and of each document of JSON lines. Lines keep their line feed;
// malformed JSON lines are left out.
class CorpusLines {
 public:
  // Throws UserError like CorpusReader.
  CorpusLines(std::vector<std::string> paths, std::string field);
  // False at the end.
  bool next(std::string& line);

 private:
  bool next_text();

  std::vector<std::string> paths_;
  std::string field_;
  std::size_t next_path_ = 0;
  MappedFile file_;
  std::size_t at_ = 0;     // in the file
  std::string document_;   // of JSON lines
  std::string_view text_;  // the document or the file
  std::size_t text_at_ = 0;
};

}  // namespace meshtrain
