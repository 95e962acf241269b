#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "data/unicode.h"

namespace meshtrain {
namespace {

constexpr std::size_t kPartBytes = 1U << 20U;
constexpr std::size_t kLongestSentence = 16384;

// Where the part that starts at text[begin] ends.
std::size_t part_end(std::string_view text, std::size_t begin) {
  if (text.size() - begin <= kPartBytes) return text.size();
  const std::size_t feed = text.find('\n', begin + kPartBytes);
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const std::string& eod) : path_(path) {
    const MappedFile file = MappedFile::open(path, "the SentencePiece model");
    const auto status = processor_.LoadFromSerializedProto(file.text());
    if (file.size() == 0 || !status.ok()) {
      throw_user_error(
          "the SentencePiece model \"{}\" cannot be loaded: {}. A .model file of SentencePiece is needed.",
          path, file.size() == 0 ? "it is empty" : status.ToString());
    }
    find_anchor();
    if (eod.empty()) {
      if (processor_.eos_id() >= 0) end_ = processor_.eos_id();
      return;
    }
    const int id = processor_.PieceToId(eod);
    if (processor_.IdToPiece(id) != eod) {
      throw_user_error("the SentencePiece model \"{}\" has no piece \"{}\", which was to end each document",
                       path, eod);
    }
    end_ = id;
  }

  std::string name() const override { return "sentencepiece:" + path_; }
  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> end_of_document() const override { return end_; }
  std::unique_ptr<Encoder> encoder() const override;

  std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) {
        throw_run_error("token id {} cannot be decoded: tokenizer \"{}\" has ids 0 to {}", id, name(),
                        vocab_size() - 1);
      }
    }
    std::string text;
    for (auto at = ids.begin(); at != ids.end();) {
      if (processor_.IsByte(*at)) {
        text.push_back(byte_of(*at++));
        continue;
      }
      const auto end = std::find_if(at, ids.end(), [&](std::int32_t id) { return processor_.IsByte(id); });
      text += text_of({at, end}, text.empty());
      at = end;
    }
    return text;
  }

  bool is_special(std::int32_t id) const override {
    return id >= 0 && id < vocab_size() && (processor_.IsControl(id) || processor_.IsUnknown(id));
  }

  std::size_t split_point(std::string_view text, std::size_t from) const override {
    std::size_t at = 0;
    while (at < from && at < text.size()) at = part_end(text, at);
    return at;
  }

 private:
  friend class SentencePieceEncoder;

  // A piece with text of its own; whatever follows it is not the start of a text.
  void find_anchor() {
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsByte(id) || processor_.IsControl(id) || processor_.IsUnknown(id)) continue;
      anchor_text_ = library_text({id});
      if (anchor_text_.empty()) continue;
      anchor_ = id;
      return;
    }
  }

  std::string library_text(const std::vector<int>& ids) const {
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    if (!status.ok()) throw_run_error("decoding with \"{}\" failed: {}", name(), status.ToString());
    return text;
  }

  // Pieces other than bytes, by the library, which may drop a space at the start of a text.
  std::string text_of(std::span<const std::int32_t> ids, bool is_start) const {
    std::vector<int> pieces;
    if (!is_start && anchor_ >= 0) pieces.push_back(anchor_);
    const std::size_t shown = pieces.empty() ? 0 : anchor_text_.size();
    pieces.insert(pieces.end(), ids.begin(), ids.end());
    return library_text(pieces).substr(shown);
  }

  // Of a piece "<0xE4>". The library makes characters of bytes and U+FFFD of what is left over, one for each.
  char byte_of(std::int32_t id) const {
    return static_cast<char>(std::stoi(processor_.IdToPiece(id).substr(3, 2), nullptr, 16));
  }

  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<std::int32_t> end_;
  int anchor_ = -1;  // -1: no piece has text
  std::string anchor_text_;
};

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = part_end(text, begin);
      const auto status =
          tokenizer_.processor_.Encode(valid_utf8(text.substr(begin, end - begin), valid_), &part_);
      if (!status.ok())
        throw_run_error("encoding with \"{}\" failed: {}", tokenizer_.name(), status.ToString());
      ids.insert(ids.end(), part_.begin(), part_.end());
      begin = end;
    }
  }

 private:
  const SentencePieceTokenizer& tokenizer_;
  std::string valid_;
  std::vector<int> part_;
};

std::unique_ptr<Encoder> SentencePieceTokenizer::encoder() const {
  return std::make_unique<SentencePieceEncoder>(*this);
}

constexpr std::size_t kCodePoints = 0x110000;

// The characters that get a piece of their own, by code point: the most frequent ones, up to 99.95 % of the
// text, but no more than half of what the special pieces and the bytes leave of the vocabulary, so that there
// is room to merge. The others are written as bytes. All false when there is no text.
std::vector<bool> frequent_characters(const LineSource& next_line, std::int64_t vocab) {
  std::vector<std::pair<std::int64_t, std::size_t>> counts(kCodePoints);  // negative, so that sorting is stable
  for (std::size_t c = 0; c < kCodePoints; ++c) counts[c].second = c;
  std::int64_t total = 0;
  std::string line;
  std::string storage;
  while (next_line(line)) {
    const std::string_view text = valid_utf8(line, storage);
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      at += point.length;
      // The trainer skips sentences that hold a tab or U+2585, which it uses itself, and drops NUL.
      if (point.value == 0 || point.value == U'\t' || point.value == U'\u2585') continue;
      --counts[point.value].first;
      ++total;
    }
  }
  std::sort(counts.begin(), counts.end());
  std::vector<bool> kept(kCodePoints);
  std::int64_t limit = std::max<std::int64_t>(1, (vocab - 259) / 2);
  std::int64_t covered = 0;
  for (const auto& [count, c] : counts) {
    if (count == 0 || limit-- == 0 || static_cast<double>(covered) >= 0.9995 * static_cast<double>(total))
      break;
    kept[c] = true;
    covered -= count;
  }
  return kept;
}

// What SentencePiece's trainer sees: runs of kept characters.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  Sentences(LineSource next_line, const std::vector<bool>& kept)
      : next_line_(std::move(next_line)), kept_(kept) {
    Next();
  }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    for (sentence_.clear(); sentence_.empty();) {
      if (at_ >= text_.size()) {
        if (!next_line_(line_)) {
          done_ = true;
          return;
        }
        text_ = valid_utf8(line_, storage_);
        at_ = 0;
      }
      while (at_ < text_.size() && sentence_.size() < kLongestSentence) {
        const CodePoint point = code_point_at(text_, at_);
        at_ += point.length;
        if (!kept_[point.value]) break;
        sentence_.append(text_.substr(at_ - point.length, point.length));
      }
    }
  }

 private:
  LineSource next_line_;
  const std::vector<bool>& kept_;
  std::string line_;
  std::string storage_;
  std::string_view text_;  // of line_ or storage_
  std::size_t at_ = 0;
  std::string sentence_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path, const std::string& eod) {
  return std::make_unique<SentencePieceTokenizer>(path, eod);
}

std::string train_sentencepiece(const std::function<LineSource()>& open_lines,
                                const SentencePieceTraining& options, const std::string& what) {
  const std::vector<bool> kept = frequent_characters(open_lines(), options.vocab);
  Sentences sentences(open_lines(), kept);
  if (sentences.done()) throw_user_error("training SentencePiece on {}: there is no text in it", what);
  sentencepiece::SetRandomGeneratorSeed(1);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{
          {"model_type", options.type},
          {"vocab_size", std::to_string(options.vocab)},
          {"num_threads", std::to_string(options.threads)},
          {"character_coverage", "1.0"},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"split_digits", "true"},
          {"max_sentence_length", std::to_string(kLongestSentence + 4)},
          {"input_sentence_size", std::to_string(options.max_sentences)},
          {"shuffle_input_sentence", "true"},
          {"train_extremely_large_corpus", "true"},
          {"minloglevel", "2"},
      },
      &sentences, &model);
  if (!status.ok()) {
    throw_user_error(
        "training SentencePiece ({}, vocabulary of {}) on {}: {}. A smaller --vocab or more text may help.",
        options.type, options.vocab, what, status.ToString());
  }
  return model;
}

}  // namespace meshtrain
