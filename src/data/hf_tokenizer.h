// Hugging Face tokenizer.json files with byte-level BPE (GPT-2, Llama-3, Qwen2/2.5/3, SmolLM and their
// like): the same ids as the Hugging Face library's encode(text, add_special_tokens=False).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace meshtrain {

// The end-of-document token is `eod` where given, else the first of these that the file adds:
// <|endoftext|>, <|end_of_text|>, </s>, <eos>, <|eot_id|>, <|im_end|>, else none.
// `path` may be the folder that holds tokenizer.json. Throws UserError.
std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::string& path, const std::string& eod = "");

// The same from the file's content; `file` names it in errors.
std::unique_ptr<Tokenizer> parse_hf_tokenizer(std::string_view json, const std::string& file,
                                              const std::string& eod = "");

}  // namespace meshtrain
