// Added tokens of a tokenizer.json: texts that become one id before anything else looks at them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/regex.h"

namespace meshtrain {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only where no \w touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = true;    // is looked for in the normalized text
  bool special = false;
};

// Finds a set of tokens: at the leftmost place the longest one, as the Hugging Face library does.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // `contents[i]` is the text to look for of `tokens[i]`; both have one entry a token.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& contents);

  bool empty() const { return tokens_.empty(); }
  // Calls text(view) for each non-empty part between tokens and token(id) for each token, in order.
  template <class OnText, class OnToken>
  void split(std::string_view sentence, OnText&& text, OnToken&& token) const {
    std::size_t done = 0;
    std::size_t at = 0;
    Match match;
    while (next(sentence, at, done, match)) {
      if (done < match.begin) text(sentence.substr(done, match.begin - done));
      token(match.id);
      done = match.end;
    }
    if (done < sentence.size()) text(sentence.substr(done));
  }

 private:
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t id = 0;
  };
  // A node of the trie; its children are a run of `nodes_`, sorted by byte.
  struct Node {
    std::uint8_t byte = 0;
    std::int32_t token = -1;  // index in tokens_ that ends here
    std::uint32_t first_child = 0;
    std::uint32_t child_count = 0;
  };

  // Longest token that starts at sentence[at]: its length, 0 when there is none.
  std::size_t longest(std::string_view sentence, std::size_t at, std::int32_t& token) const;
  bool next(std::string_view sentence, std::size_t& at, std::size_t done, Match& match) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  bool starts_[256] = {};
};

}  // namespace meshtrain
