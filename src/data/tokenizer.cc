#include "data/tokenizer.h"

#include <filesystem>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "data/sentencepiece_tokenizer.h"

namespace meshtrain {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->encode(text, ids);
  return ids;
}

std::int32_t Tokenizer::require_end_of_document() const {
  const std::optional<std::int32_t> id = end_of_document();
  if (!id) {
    throw_user_error(
        "tokenizer \"{}\": it has no token that is known to end a document. Name one with "
        "`meshtrain tokenize --eod TOKEN`.",
        name());
  }
  return *id;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::string& eod) {
  constexpr std::string_view kSentencePiece = "sentencepiece:";
  constexpr std::string_view kHuggingFace = "hf:";
  if (spec == "bytes") {
    if (!eod.empty()) {
      throw_user_error(
          "tokenizer \"bytes\": the end-of-document token cannot be \"{}\", because it is always id 256. "
          "Leave --eod out.",
          eod);
    }
    return std::make_unique<ByteTokenizer>();
  }
  if (spec.starts_with(kSentencePiece)) return load_sentencepiece(spec.substr(kSentencePiece.size()), eod);
  if (spec.starts_with(kHuggingFace)) return load_hf_tokenizer(spec.substr(kHuggingFace.size()), eod);
  std::error_code ignored;
  if (spec.ends_with(".json") || std::filesystem::exists(spec + "/tokenizer.json", ignored)) {
    return load_hf_tokenizer(spec, eod);
  }
  throw_user_error(
      "tokenizer \"{}\": not a known tokenizer. Known are \"bytes\", \"sentencepiece:FILE\" and "
      "\"hf:FILE\" or FILE.json (a Hugging Face tokenizer.json){}.",
      spec, spec.ends_with(".model") ? fmt::format("; did you mean \"sentencepiece:{}\"?", spec) : "");
}

}  // namespace meshtrain
