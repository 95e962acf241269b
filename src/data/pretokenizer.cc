#include "data/pretokenizer.h"

#include "data/unicode.h"

namespace meshtrain {
namespace {

// MergedWithNext is MergedWithPrevious seen from the end.
template <class Parts>
std::vector<TextRange> merge_runs(const Parts& parts, SplitBehavior behavior) {
  std::vector<TextRange> ranges;
  if (behavior == SplitBehavior::kMergedWithNext) {
    bool previous = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->delimiter && !previous && !ranges.empty()) {
        ranges.back().begin = part->range.begin;
      } else {
        ranges.push_back(part->range);
      }
      previous = part->delimiter;
    }
    return {ranges.rbegin(), ranges.rend()};
  }
  bool previous = false;
  bool first = true;
  for (const auto& part : parts) {
    const bool joins = behavior == SplitBehavior::kContiguous ? !first && part.delimiter == previous
                                                              : part.delimiter && !previous && !first;
    if (joins) {
      ranges.back().end = part.range.end;
    } else {
      ranges.push_back(part.range);
    }
    previous = part.delimiter;
    first = false;
  }
  return ranges;
}

}  // namespace

Pretokenizer::Pretokenizer(const std::vector<PretokenizerStep>& steps) : steps_(steps) {
  for (const PretokenizerStep& step : steps) {
    matchers_.push_back(step.pattern ? std::make_unique<RegexMatcher>(*step.pattern) : nullptr);
  }
}

bool Pretokenizer::next_delimiter(std::size_t step, std::string_view text, Search& search) {
  if (steps_[step].kind == PretokenizerStep::Kind::kDigits) {
    while (search.from < text.size()) {
      const CodePoint point = code_point_at(text, search.from);
      search.from += point.length;
      if (is_number(point.value)) {
        search.match = {search.from - point.length, search.from};
        return true;
      }
    }
    return false;
  }
  while (search.from <= text.size()) {
    TextRange match;
    if (!matchers_[step]->find(search.from, match)) return false;
    // An empty match right behind the last match does not count.
    if (match.size() == 0 && search.any && match.end == search.match.end) {
      if (match.end == text.size()) return false;
      search.from = match.end + code_point_at(text, match.end).length;
      continue;
    }
    search = {match.end, match, true};
    return true;
  }
  return false;
}

std::vector<TextRange> Pretokenizer::merged_parts(std::size_t step, std::string_view text) {
  std::vector<Part> parts;
  each_part(step, text, [&](Part part) { parts.push_back(part); });
  if (steps_[step].behavior != SplitBehavior::kRemoved) return merge_runs(parts, steps_[step].behavior);
  std::vector<TextRange> ranges;
  for (const Part& part : parts) {
    if (!part.delimiter) ranges.push_back(part.range);
  }
  return ranges;
}

}  // namespace meshtrain
