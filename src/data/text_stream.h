// The text of tokens that come one at a time, as UTF-8.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace meshtrain {

// What add() and finish() return adds up to the text of all tokens that are not special, each maximal
// ill-formed part of it as U+FFFD, and holds a character as soon as its last byte is there.
class TextStream {
 public:
  // `before`: the tokens in front, whose text has been shown already. The tokenizer must outlive the stream.
  TextStream(const Tokenizer& tokenizer, std::span<const std::int32_t> before);

  std::string add(std::int32_t id);
  std::string finish();

 private:
  std::string bytes_of(std::int32_t id);

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> context_;  // the last token that has some text, or all where none has
  std::string pending_;                // bytes of a character that is not whole yet
};

}  // namespace meshtrain
