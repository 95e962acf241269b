// How a tokenizer is named in a config and on the command line:
//
//   bytes                            ids 0-255 are the bytes, 256 ends a document
//   none                             there are token files, and no text
//   sentencepiece:FILE               a SentencePiece model
//   hf:FILE, FILE.json, a folder     a Hugging Face tokenizer.json, or the folder that holds it
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshtrain {

enum class TokenizerKind : std::uint8_t { kBytes, kNone, kSentencePiece, kHuggingFace };

struct TokenizerName {
  TokenizerKind kind = TokenizerKind::kBytes;
  std::string path;  // empty for bytes and none
};

// std::nullopt where it names none that is known. A name without "hf:" is a Hugging Face tokenizer's if it ends
// in .json, or is a folder with a tokenizer.json.
std::optional<TokenizerName> parse_tokenizer_name(const std::string& name);

// A name that is read back as the same.
std::string to_string(const TokenizerName& name);

// The name with "~" at the start of its path expanded (base/home_path.h).
std::string expand_home_of_tokenizer(const std::string& name);

}  // namespace meshtrain
