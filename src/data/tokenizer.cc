#include "data/tokenizer.h"

#include <optional>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "data/no_tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tokenizer_name.h"

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
  const std::optional<TokenizerName> name = parse_tokenizer_name(spec);
  if (name) {
    switch (name->kind) {
      case TokenizerKind::kSentencePiece:
        return load_sentencepiece(name->path, eod);
      case TokenizerKind::kHuggingFace:
        return load_hf_tokenizer(name->path, eod);
      case TokenizerKind::kNone:
        return std::make_unique<NoTokenizer>();
      case TokenizerKind::kBytes:
        break;
    }
    if (eod.empty()) return std::make_unique<ByteTokenizer>();
    throw_user_error(
        "tokenizer \"bytes\": the end-of-document token cannot be \"{}\", because it is always id 256. "
        "Leave --eod out.",
        eod);
  }
  throw_user_error(
      "tokenizer \"{}\": not a known tokenizer. Known are \"bytes\", \"sentencepiece:FILE\", "
      "\"hf:FILE\" or FILE.json (a Hugging Face tokenizer.json), and \"none\" for token files{}.",
      spec, spec.ends_with(".model") ? fmt::format("; did you mean \"sentencepiece:{}\"?", spec) : "");
}

}  // namespace meshtrain
