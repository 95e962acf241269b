// Text to token ids and back.
//
// A Tokenizer is immutable and shared by threads; each thread encodes through its own Encoder, which
// holds caches and scratch memory. Special tokens that a tokenizer's file would add around a text
// (<|begin_of_text|> and the like) are never added: a document is its text and, in a corpus, one
// end-of-document token after it. The text of a special token inside the input becomes that token, as
// in the Hugging Face library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

// Belongs to one thread at a time; must not outlive its tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of `text`. Ill-formed UTF-8 is replaced by U+FFFD (one for each maximal ill-formed
  // part) except by "bytes", which takes bytes as they are.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The specification that opens it again, e.g. "bytes" or "hf:tokenizer.json".
  virtual std::string name() const = 0;
  // Ids are below this.
  virtual std::int64_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> end_of_document() const = 0;
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // The bytes of the tokens; a sequence cut inside a character gives ill-formed UTF-8. Special tokens
  // give their text where their file has one. The text of ids that follow others of some text does not depend
  // on them. Throws RunError when an id is outside the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // Whether a token is a mark rather than text: what the Hugging Face library's decode() omits with
  // skip_special_tokens=True.
  virtual bool is_special(std::int32_t id) const = 0;
  // A place p in [from, text.size()] where the text may be cut: the ids of `text` are the ids of
  // text[0, p) followed by those of text[p, end). text.size() when there is no such place, or none
  // that is known to be safe for this tokenizer. `from` > 0.
  virtual std::size_t split_point(std::string_view text, std::size_t from) const = 0;

  // Convenience for short texts: a fresh encoder each time.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // end_of_document(), or UserError saying how to name one.
  virtual std::int32_t require_end_of_document() const;
};

// By its name (data/tokenizer_name.h). A SentencePiece model's </s> ends a document; a Hugging Face tokenizer
// has to be a byte-level BPE. `eod` names the end-of-document token where the default is missing or wrong.
// Throws UserError.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::string& eod = "");

}  // namespace meshtrain
