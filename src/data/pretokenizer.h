// Cutting text into the pieces that BPE works on: the pre-tokenizers of tokenizer.json that byte-level
// models use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/regex.h"

namespace meshtrain {

// What happens to the matches ("delimiters") of a split.
enum class SplitBehavior : std::uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};

struct PretokenizerStep {
  enum class Kind : std::uint8_t { kPattern, kDigits };
  Kind kind = Kind::kPattern;
  bool add_prefix_space = false;  // a piece that does not start with ' ' gets one first (ByteLevel)
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;             // delimiters are what the pattern does not match
  std::shared_ptr<Regex> pattern;  // kPattern; null: no split
};

// GPT-2's pattern, which the ByteLevel pre-tokenizer has built in (as published with GPT-2, encoder.py).
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// One thread's pre-tokenizer; `steps` must outlive it.
class Pretokenizer {
 public:
  explicit Pretokenizer(const std::vector<PretokenizerStep>& steps);

  // Calls piece(std::string_view) for each non-empty piece of `text`, in order. A view lives until the
  // call returns.
  template <class OnPiece>
  void split(std::string_view text, OnPiece&& piece) {
    run(0, text, piece);
  }

 private:
  struct Part {
    TextRange range;
    bool delimiter;
  };

  struct Search {
    std::size_t from = 0;  // where it goes on
    TextRange match;       // the last one found
    bool any = false;      // whether there was one
  };

  template <class OnPiece>
  void run(std::size_t step, std::string_view text, OnPiece& piece) {
    if (text.empty()) return;
    if (step == steps_.size()) {
      piece(text);
      return;
    }
    const PretokenizerStep& s = steps_[step];
    std::string prefixed;
    if (s.add_prefix_space && text[0] != ' ') {
      prefixed.reserve(text.size() + 1);
      prefixed.append(" ").append(text);
      text = prefixed;
    }
    if (s.kind == PretokenizerStep::Kind::kPattern && !s.pattern) {
      run(step + 1, text, piece);
    } else if (s.behavior == SplitBehavior::kIsolated) {
      each_part(step, text,
                [&](Part part) { run(step + 1, text.substr(part.range.begin, part.range.size()), piece); });
    } else {
      for (const TextRange range : merged_parts(step, text)) {
        run(step + 1, text.substr(range.begin, range.size()), piece);
      }
    }
  }

  // Delimiters and what lies between them, in order, without empty parts in between.
  template <class OnPart>
  void each_part(std::size_t step, std::string_view text, OnPart&& part) {
    std::size_t done = 0;
    Search search;
    if (matchers_[step]) matchers_[step]->begin(text);
    while (next_delimiter(step, text, search)) {
      if (done < search.match.begin) part(Part{{done, search.match.begin}, steps_[step].invert});
      part(Part{search.match, !steps_[step].invert});
      done = search.match.end;
    }
    if (done < text.size()) part(Part{{done, text.size()}, steps_[step].invert});
  }

  bool next_delimiter(std::size_t step, std::string_view text, Search& search);
  std::vector<TextRange> merged_parts(std::size_t step, std::string_view text);

  const std::vector<PretokenizerStep>& steps_;
  std::vector<std::unique_ptr<RegexMatcher>> matchers_;  // one a step; null where it has no pattern
};

}  // namespace meshtrain
