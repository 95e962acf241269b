#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>

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
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) throw_run_error("decoding with \"{}\" failed: {}", name(), status.ToString());
    return text;
  }

  std::size_t split_point(std::string_view text, std::size_t from) const override {
    std::size_t at = 0;
    while (at < from && at < text.size()) at = part_end(text, at);
    return at;
  }

 private:
  friend class SentencePieceEncoder;

  std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<std::int32_t> end_;
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

// Lines as SentencePiece's trainer takes them: it skips whole sentences that are long or hold a tab or
// U+2585, so these are cut out of the line instead.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<bool(std::string&)>& next_line) : next_line_(next_line) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }
  std::int64_t count() const { return count_; }

  void Next() override {
    for (;;) {
      while (at_ >= line_.size()) {
        if (!next_line_(raw_)) {
          done_ = true;
          return;
        }
        const std::string_view valid = valid_utf8(raw_, storage_);
        line_ = valid.data() == raw_.data() ? raw_ : storage_;
        at_ = 0;
      }
      const std::string_view rest = std::string_view(line_).substr(at_);
      std::size_t end = std::min({rest.size(), rest.find('\t'), rest.find("\u2585")});
      std::size_t skip = end == rest.size() ? 0 : rest[end] == '\t' ? 1 : 3;
      if (end > kLongestSentence) {
        end = kLongestSentence;
        while ((static_cast<unsigned char>(rest[end]) & 0xC0U) == 0x80) --end;
        skip = 0;
      }
      at_ += end + skip;
      if (end == 0) continue;
      sentence_.assign(rest.substr(0, end));
      ++count_;
      return;
    }
  }

 private:
  const std::function<bool(std::string&)>& next_line_;
  std::string raw_;
  std::string storage_;
  std::string line_;
  std::size_t at_ = 0;
  std::string sentence_;
  std::int64_t count_ = 0;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path, const std::string& eod) {
  return std::make_unique<SentencePieceTokenizer>(path, eod);
}

std::string train_sentencepiece(const std::function<bool(std::string&)>& next_line,
                                const SentencePieceTraining& options, const std::string& what) {
  Sentences sentences(next_line);
  if (sentences.done()) throw_user_error("training SentencePiece on {}: there is no text in it", what);
  sentencepiece::SetRandomGeneratorSeed(1);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      std::unordered_map<std::string, std::string>{
          {"model_type", options.type},
          {"vocab_size", std::to_string(options.vocab)},
          {"num_threads", std::to_string(options.threads)},
          {"character_coverage", "0.9995"},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"split_digits", "true"},
          {"max_sentence_length", std::to_string(kLongestSentence + 1)},
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
