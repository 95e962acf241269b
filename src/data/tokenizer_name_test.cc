#include "data/tokenizer_name.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

namespace meshtrain {
namespace {

TEST(TokenizerName, IsReadAndWritten) {
  for (const auto& [text, kind, path] : std::vector<std::tuple<std::string, TokenizerKind, std::string>>{
           {"bytes", TokenizerKind::kBytes, ""},
           {"none", TokenizerKind::kNone, ""},
           {"sentencepiece:a=b.model", TokenizerKind::kSentencePiece, "a=b.model"},
           {"sentencepiece:", TokenizerKind::kSentencePiece, ""},
           {"hf:some/folder", TokenizerKind::kHuggingFace, "some/folder"},
           {"hf:tokenizer", TokenizerKind::kHuggingFace, "tokenizer"},
       }) {
    SCOPED_TRACE(text);
    const std::optional<TokenizerName> name = parse_tokenizer_name(text);
    ASSERT_TRUE(name);
    EXPECT_EQ(name->kind, kind);
    EXPECT_EQ(name->path, path);
    EXPECT_EQ(to_string(*name), text);
  }
}

TEST(TokenizerName, JsonIsHuggingFaces) {
  const std::optional<TokenizerName> name = parse_tokenizer_name("gpt2/tokenizer.json");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->kind, TokenizerKind::kHuggingFace);
  EXPECT_EQ(name->path, "gpt2/tokenizer.json");
}

TEST(TokenizerName, OthersAreUnknown) {
  for (const char* text : {"", "byte", "tokenizer.model", "sentencepiece", "/"}) {
    EXPECT_FALSE(parse_tokenizer_name(text)) << text;
  }
}

}  // namespace
}  // namespace meshtrain
