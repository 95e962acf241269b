#include "data/tokenizer_name.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/home_path.h"

namespace meshtrain {
namespace {

constexpr std::string_view kSentencePiece = "sentencepiece:";
constexpr std::string_view kHuggingFace = "hf:";

}  // namespace

std::optional<TokenizerName> parse_tokenizer_name(const std::string& name) {
  if (name == "bytes") return TokenizerName{};
  if (name == "none") return TokenizerName{TokenizerKind::kNone, ""};
  if (name.starts_with(kSentencePiece)) {
    return TokenizerName{TokenizerKind::kSentencePiece, name.substr(kSentencePiece.size())};
  }
  if (name.starts_with(kHuggingFace)) {
    return TokenizerName{TokenizerKind::kHuggingFace, name.substr(kHuggingFace.size())};
  }
  std::error_code ignored;
  if (name.ends_with(".json") || std::filesystem::exists(name + "/tokenizer.json", ignored)) {
    return TokenizerName{TokenizerKind::kHuggingFace, name};
  }
  return std::nullopt;
}

std::string expand_home_of_tokenizer(const std::string& name) {
  for (const std::string_view kind : {kSentencePiece, kHuggingFace}) {
    if (name.starts_with(kind)) return std::string(kind) + expand_home(name.substr(kind.size()));
  }
  return expand_home(name);
}

std::string to_string(const TokenizerName& name) {
  switch (name.kind) {
    case TokenizerKind::kSentencePiece:
      return std::string(kSentencePiece) + name.path;
    case TokenizerKind::kHuggingFace:
      return std::string(kHuggingFace) + name.path;
    case TokenizerKind::kNone:
      return "none";
    case TokenizerKind::kBytes:
      break;
  }
  return "bytes";
}

}  // namespace meshtrain
