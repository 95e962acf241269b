#include "data/code_point_set.h"

#include <algorithm>
#include <string>

namespace meshtrain {
namespace {

// The characters of the categories whose names begin with `prefix`.
CodePointSet category_set(std::string_view prefix) {
  const auto is_of = [&](std::uint8_t kind) { return unicode::kCategories[kind].starts_with(prefix); };
  const bool upper = unicode::kCategories[1].starts_with(prefix);
  const bool lower = unicode::kCategories[2].starts_with(prefix);
  std::vector<CodePointRange> ranges;
  const std::span<const unicode::CategoryRun> runs = unicode::category_runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const char32_t first = runs[i].first;
    const char32_t last = i + 1 < runs.size() ? runs[i + 1].first - 1 : kLastCodePoint;
    if (runs[i].kind != unicode::kAlternating) {
      if (is_of(runs[i].kind)) ranges.push_back({first, last});
      continue;
    }
    for (char32_t value = first; value <= last; ++value) {
      if ((value - first) % 2 == 0 ? upper : lower) ranges.push_back({value, value});
    }
  }
  CodePointSet set;
  set.add(ranges);
  return set;
}

// Names are compared without case, spaces, "-" and "_".
std::string folded_name(std::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    folded.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return folded;
}

char32_t least_case(char32_t value) {
  for (const unicode::CaseRun& run : unicode::case_runs()) {
    if (value >= run.first && value <= run.last && (value - run.first) % run.step == 0) return value - run.back;
  }
  return value;
}

}  // namespace

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) {
  add({ranges.begin(), ranges.size()});
}

void CodePointSet::add(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), ranges.begin(), ranges.end());
  std::sort(all.begin(), all.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  ranges_.clear();
  for (const CodePointRange& range : all) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

void CodePointSet::add(char32_t first, char32_t last) {
  const CodePointRange range = {first, last};
  add({&range, 1});
}

void CodePointSet::add_other_cases() {
  CodePointSet least;
  std::vector<CodePointRange> found;
  const auto each_with_a_run = [](const auto& visit) {
    for (const unicode::CaseRun& run : unicode::case_runs()) {
      for (char32_t value = run.first; value <= run.last; value += run.step) visit(value, value - run.back);
    }
  };
  each_with_a_run([&](char32_t value, char32_t representative) {
    if (contains(value)) found.push_back({representative, representative});
  });
  least.add(found);
  least.add(*this);
  found.clear();
  each_with_a_run([&](char32_t value, char32_t representative) {
    if (least.contains(representative)) found.push_back({value, value});
  });
  add(least);
  add(found);
}

void CodePointSet::keep_only(const CodePointSet& other) {
  CodePointSet outside = complement();
  outside.add(other.complement());
  *this = outside.complement();
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (next < range.first) result.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) result.ranges_.push_back({next, kLastCodePoint});
  return result;
}

bool CodePointSet::contains(char32_t value) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), value,
                                      [](char32_t v, const CodePointRange& range) { return v < range.first; });
  return after != ranges_.begin() && value <= (after - 1)->last;
}

std::optional<CodePointSet> property_set(std::string_view name) {
  const std::string folded = folded_name(name);
  for (const std::string_view category : unicode::kCategories) {
    const std::string known = folded_name(category);
    if (folded == known) return category_set(category);
    if (folded == known.substr(0, 1)) return category_set(category.substr(0, 1));
  }
  for (const unicode::ScriptRanges& script : unicode::scripts()) {
    if (folded != folded_name(script.name)) continue;
    CodePointSet set;
    set.add(unicode::script_ranges().subspan(script.begin, script.count));
    return set;
  }
  return std::nullopt;
}

CodePointSet space_set() {
  CodePointSet set = category_set("Z");
  set.add(0x09, 0x0D);
  set.add(0x85, 0x85);
  return set;
}

CodePointSet word_set() {
  CodePointSet set;
  for (const char* category : {"L", "M", "Nd", "Nl", "Pc"}) set.add(category_set(category));
  set.add(unicode::other_word());
  return set;
}

bool begins_long_folding(char32_t first, char32_t second) {
  const std::span<const unicode::CharacterPair> pairs = unicode::long_foldings();
  return std::any_of(pairs.begin(), pairs.end(), [&](const unicode::CharacterPair& pair) {
    return least_case(pair.first) == least_case(first) && least_case(pair.second) == least_case(second);
  });
}

bool folds_to_several(char32_t value) {
  CodePointSet set;
  set.add(unicode::folds_to_several());
  return set.contains(value);
}

}  // namespace meshtrain
