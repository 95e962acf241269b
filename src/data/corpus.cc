#include "data/corpus.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_reason.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

struct Signature {
  std::string_view start;
  std::string_view name;
  std::string_view remedy;
};
constexpr std::array<Signature, 8> kNotText = {{
    {"\x1F\x8B", "gzip-compressed", "Decompress it first"},
    {"\x28\xB5\x2F\xFD", "zstd-compressed", "Decompress it first"},
    {"BZh9", "bzip2-compressed", "Decompress it first"},
    {"\xFD"
     "7zXZ",
     "xz-compressed", "Decompress it first"},
    {"PK\x03\x04", "a zip archive", "Unpack it first"},
    {"PAR1", "a Parquet file", "Write its text column as .jsonl first"},
    {"\xFF\xFE", "UTF-16 text", "Convert it to UTF-8 first"},
    {"\xFE\xFF", "UTF-16 text", "Convert it to UTF-8 first"},
}};

// The end of the line that text[at] is in, behind its line feed.
std::size_t line_end(std::string_view text, std::size_t at) {
  const std::size_t feed = text.find('\n', at);
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

// The input's size; 0 for a pipe.
std::int64_t check_input(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    throw_user_error("the input \"{}\" does not exist. Check the path.", path);
  if (std::filesystem::is_directory(status)) {
    throw_user_error("the input \"{0}\" is a folder. Name the files in it, e.g. {0}/*.txt.", path);
  }
  if (std::filesystem::is_character_file(status) || std::filesystem::is_block_file(status)) {
    throw_user_error("the input \"{}\" is a device, which may have no end. Name a file or a pipe.", path);
  }
  if (!std::filesystem::is_regular_file(status)) return 0;
  const MappedFile file = MappedFile::open(path, "the input");
  for (const Signature& signature : kNotText) {
    if (file.text().starts_with(signature.start)) {
      throw_user_error("the input \"{}\" is {}, not UTF-8 text. {}.", path, signature.name, signature.remedy);
    }
  }
  return static_cast<std::int64_t>(file.size());
}

}  // namespace

CorpusKind corpus_kind(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") ? CorpusKind::kJsonLines : CorpusKind::kText;
}

std::optional<std::string> json_line_text(std::string_view line, const std::string& field,
                                          std::string& reason) {
  try {
    Json value = Json::parse(line);
    if (!value.is_object()) {
      reason = fmt::format("the line holds a JSON {}, not an object", value.type_name());
      return std::nullopt;
    }
    const auto found = value.find(field);
    if (found == value.end()) {
      reason = fmt::format("the object has no field \"{}\"", field);
      return std::nullopt;
    }
    if (!found->is_string()) {
      reason = fmt::format("the field \"{}\" holds a JSON {}, not a string", field, found->type_name());
      return std::nullopt;
    }
    return std::move(found->get_ref<std::string&>());
  } catch (const Json::exception& error) {
    reason = "not valid JSON: " + json_reason(error);
    return std::nullopt;
  }
}

CorpusReader::CorpusReader(std::vector<std::string> paths, std::size_t chunk_bytes)
    : paths_(std::move(paths)), chunk_bytes_(chunk_bytes) {
  for (const std::string& path : paths_) total_bytes_ += check_input(path);
}

std::optional<CorpusChunk> CorpusReader::next(const Tokenizer& tokenizer) {
  if (!file_) {
    if (next_path_ == paths_.size()) return std::nullopt;
    file_ = std::make_shared<const MappedFile>(MappedFile::open(paths_[next_path_], "the input"));
    at_ = 0;
    ++next_path_;
  }
  CorpusChunk chunk;
  chunk.file = file_;
  chunk.path = &paths_[next_path_ - 1];
  chunk.kind = corpus_kind(*chunk.path);
  const std::string_view rest = file_->text().substr(at_);
  std::size_t length = rest.size();
  if (length > chunk_bytes_) {
    length = chunk.kind == CorpusKind::kJsonLines ? line_end(rest, chunk_bytes_)
                                                  : tokenizer.split_point(rest, chunk_bytes_);
  }
  chunk.text = rest.substr(0, length);
  chunk.ends_document = length == rest.size();
  at_ += length;
  if (at_ == file_->size()) file_.reset();
  return chunk;
}

CorpusLines::CorpusLines(std::vector<std::string> paths, std::string field)
    : paths_(std::move(paths)), field_(std::move(field)) {
  for (const std::string& path : paths_) check_input(path);
}

bool CorpusLines::next(std::string& line) {
  while (text_at_ >= text_.size()) {
    if (!next_text()) return false;
  }
  const std::size_t end = line_end(text_, text_at_);
  line.assign(text_.substr(text_at_, end - text_at_));
  text_at_ = end;
  return true;
}

// Puts the next document or text file into text_.
bool CorpusLines::next_text() {
  text_at_ = 0;
  while (at_ >= file_.size()) {
    if (next_path_ == paths_.size()) return false;
    file_ = MappedFile::open(paths_[next_path_], "the input");
    at_ = 0;
    ++next_path_;
  }
  if (corpus_kind(paths_[next_path_ - 1]) == CorpusKind::kText) {
    text_ = file_.text();
    at_ = file_.size();
    return true;
  }
  const std::size_t end = line_end(file_.text(), at_);
  std::string reason;
  document_ = json_line_text(file_.text().substr(at_, end - at_), field_, reason).value_or("");
  text_ = document_;
  at_ = end;
  return true;
}

}  // namespace meshtrain
