#include "data/token_source.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "data/indexed_dataset.h"
#include "data/llmc_tokens.h"
#include "data/tokenize_corpus.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kScannedWhole = std::int64_t{1} << 29U;
constexpr std::int64_t kScannedEnds = std::int64_t{1} << 27U;
constexpr std::int64_t kScanBlock = std::int64_t{1} << 18U;
constexpr std::int64_t kLargeText = 256'000'000;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::unique_ptr<TokenSource> open_text(const std::string& path, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    throw_user_error("the tokens \"{}\" are text, and no tokenizer is given for it.", path);
  }
  std::error_code ignored;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, ignored));
  if (!ignored && bytes > kLargeText) {
    notice(
        "{} holds {} MB of text, which is tokenized at every start and kept in memory; `meshtrain tokenize {} "
        "--out "
        "PREFIX --tokenizer {}` does it once",
        path, bytes / 1'000'000, path, tokenizer->name());
  }
  std::vector<std::int32_t> ids;
  const CorpusStats stats = tokenize_corpus(
      {path}, *tokenizer, {}, [&](std::span<const std::int32_t> part, std::span<const std::int64_t>) {
        ids.insert(ids.end(), part.begin(), part.end());
      });
  if (stats.malformed_lines > 0) notice("{}", malformed_report(stats));
  if (ids.empty()) throw_user_error("there is no text in \"{}\".", path);
  return std::make_unique<MemoryTokens>(path, std::move(ids));
}

std::unique_ptr<TokenSource> open_indexed(const std::string& prefix) {
  return std::make_unique<IndexedDataset>(IndexedDataset::open(prefix));
}

std::unique_ptr<TokenSource> open_file(const std::string& path, const Tokenizer* tokenizer) {
  const bool bin = path.ends_with(".bin");
  const bool idx = path.ends_with(".idx");
  const std::string stem = bin || idx ? path.substr(0, path.size() - 4) : path;
  if (idx || (bin && is_file(stem + ".idx"))) return open_indexed(stem);
  if (LlmcTokens::has_magic(MappedFile::open(path, "the token file").bytes())) {
    return std::make_unique<LlmcTokens>(LlmcTokens::open(path));
  }
  if (bin) {
    throw_user_error(
        "the token file \"{0}\" is neither Megatron's (there is no \"{1}.idx\" beside it) nor llm.c's (it does "
        "not "
        "start with 20240520). Name a PREFIX of PREFIX.bin and PREFIX.idx, an llm.c .bin, or a text or .jsonl "
        "file.",
        path, stem);
  }
  return open_text(path, tokenizer);
}

// The first place in [begin, end) with an id outside [0, vocab); -1: none.
std::int64_t find_outside(const TokenSource& source, std::int64_t begin, std::int64_t end, std::int64_t vocab) {
  std::vector<std::int32_t> block(static_cast<std::size_t>(kScanBlock));
  const auto limit = static_cast<std::uint32_t>(std::min<std::int64_t>(vocab, std::int64_t{1} << 31U));
  for (std::int64_t at = begin; at < end; at += kScanBlock) {
    const auto count = static_cast<std::size_t>(std::min(kScanBlock, end - at));
    const std::span<std::int32_t> part = std::span(block).first(count);
    source.read(at, part);
    std::uint32_t largest = 0;
    for (const std::int32_t id : part) largest = std::max(largest, static_cast<std::uint32_t>(id));
    source.let_go();
    if (largest < limit) continue;
    const auto bad = std::find_if(part.begin(), part.end(),
                                  [&](std::int32_t id) { return static_cast<std::uint32_t>(id) >= limit; });
    return at + (bad - part.begin());
  }
  return -1;
}

}  // namespace

std::int64_t TokenSource::id_at(std::int64_t position) const {
  std::int32_t id = 0;
  read(position, std::span(&id, 1));
  return id;
}

void MemoryTokens::read(std::int64_t begin, std::span<std::int32_t> out) const {
  check(begin >= 0 && static_cast<std::int64_t>(out.size()) <= size() - begin, "tokens to read are in memory");
  std::copy_n(ids_.begin() + begin, out.size(), out.begin());
}

std::unique_ptr<TokenSource> open_token_source(const std::string& path, const Tokenizer* tokenizer) {
  if (is_file(path)) return open_file(path, tokenizer);
  const bool bin = is_file(path + ".bin");
  const bool idx = is_file(path + ".idx");
  if (bin && idx) return open_indexed(path);
  if (bin && LlmcTokens::has_magic(MappedFile::open(path + ".bin", "the token file").bytes())) {
    return std::make_unique<LlmcTokens>(LlmcTokens::open(path + ".bin"));
  }
  if (bin || idx) {
    throw_user_error(
        "the tokens \"{0}\": there is \"{0}.{1}\" but no \"{0}.{2}\"; Megatron's data set needs both. Copy the "
        "missing file, or tokenize the text again.",
        path, bin ? "bin" : "idx", bin ? "idx" : "bin");
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw_user_error(
        "the tokens \"{0}\" are a folder, and there is no \"{0}.bin\" and \"{0}.idx\". Name a PREFIX of "
        "PREFIX.bin "
        "and PREFIX.idx, an llm.c .bin, or a text or .jsonl file.",
        path);
  }
  if (std::filesystem::exists(path, ignored)) return open_text(path, tokenizer);  // a pipe
  throw_user_error(
      "the tokens \"{0}\" do not exist: looked for \"{0}.bin\" with \"{0}.idx\", and for a file \"{0}\". Check "
      "the "
      "path, or make them with `meshtrain tokenize TEXT --out {0}`.",
      path);
}

void check_vocabulary(const TokenSource& source, std::int64_t vocab) {
  const std::int64_t size = source.size();
  std::int64_t bad = -1;
  if (size <= kScannedWhole) {
    bad = find_outside(source, 0, size, vocab);
  } else {
    bad = find_outside(source, 0, kScannedEnds, vocab);
    if (bad < 0) bad = find_outside(source, size - kScannedEnds, size, vocab);
  }
  if (bad < 0) return;
  throw_user_error(
      "the tokens \"{}\" hold the id {} at position {}, but the vocabulary has {} ids (0 to {}). They were "
      "made with "
      "another tokenizer: use that one, or set model.vocab to more than the largest id.",
      source.name(), source.id_at(bad), bad, vocab, vocab - 1);
}

}  // namespace meshtrain
