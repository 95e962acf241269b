#include "data/tokenizer_name.h"

#include <gtest/gtest.h>

#include <cstdlib>

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

TEST(TokenizerName, HomeFoldersAreThoseOfThePath) {
  const char* const before = std::getenv("HOME");
  const std::string home = before == nullptr ? "" : before;
  setenv("HOME", "/h", 1);
  EXPECT_EQ(expand_home_of_tokenizer("sentencepiece:~/m.model"), "sentencepiece:/h/m.model");
  EXPECT_EQ(expand_home_of_tokenizer("hf:~/m"), "hf:/h/m");
  EXPECT_EQ(expand_home_of_tokenizer("~/tokenizer.json"), "/h/tokenizer.json");
  for (const char* name : {"bytes", "none", "hf:a/~/b", "sentencepiece:./~/m"}) {
    EXPECT_EQ(expand_home_of_tokenizer(name), name);
  }
  before == nullptr ? unsetenv("HOME") : setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace meshtrain
