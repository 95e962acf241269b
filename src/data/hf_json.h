// What a Hugging Face tokenizer.json says, for byte-level BPE. Reading it is strict: what it asks for and
// we do not do is an error that names the field and its value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/added_tokens.h"
#include "data/bpe.h"
#include "data/pretokenizer.h"
#include "data/unicode.h"

namespace meshtrain {

struct HfSpec {
  std::vector<Normalization> normalizers;
  std::vector<PretokenizerStep> pretokenizers;
  // The regular expressions of `pretokenizers` as the file writes them, and "<digits>".
  std::vector<std::string> patterns;
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> token_text;  // by id: the bytes a token stands for; empty: no such id
  std::vector<std::pair<std::string, std::int32_t>> byte_tokens;  // tokens of the model that are byte sequences
  std::vector<std::int32_t> byte_ids;                             // by byte; -1: the vocabulary lacks it
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
};

// `json` is the content of the file; `file` names it in errors. Throws UserError.
HfSpec parse_tokenizer_json(std::string_view json, const std::string& file);

}  // namespace meshtrain
