#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"

namespace meshtrain {
namespace {

std::size_t spaces_before(std::string_view text, std::size_t end) {
  while (end > 0) {
    const CodePoint point = code_point_before(text, end);
    if (!is_space(point.value)) break;
    end -= point.length;
  }
  return end;
}

std::size_t spaces_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint point = code_point_at(text, begin);
    if (!is_space(point.value)) break;
    begin += point.length;
  }
  return begin;
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin > 0 && is_word(code_point_before(text, begin).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& contents)
    : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, std::int32_t>> sorted;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    if (!contents[i].empty()) sorted.emplace_back(contents[i], static_cast<std::int32_t>(i));
  }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [content, index] : sorted) starts_[static_cast<unsigned char>(content[0])] = true;
  nodes_.emplace_back();
  // Breadth first over (node, depth, range of `sorted`), so that children lie side by side.
  struct Pending {
    std::uint32_t node;
    std::size_t depth;
    std::size_t begin;
    std::size_t end;
  };
  std::vector<Pending> pending = {{0, 0, 0, sorted.size()}};
  for (std::size_t p = 0; p < pending.size(); ++p) {
    auto [node, depth, begin, end] = pending[p];
    for (; begin < end && sorted[begin].first.size() == depth; ++begin) {
      if (nodes_[node].token < 0) nodes_[node].token = sorted[begin].second;
    }
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      std::size_t stop = begin;
      while (stop < end && sorted[stop].first[depth] == byte) ++stop;
      pending.push_back({static_cast<std::uint32_t>(nodes_.size()), depth + 1, begin, stop});
      nodes_.push_back({static_cast<std::uint8_t>(byte), -1, 0, 0});
      ++nodes_[node].child_count;
      begin = stop;
    }
  }
}

std::size_t AddedTokenFinder::longest(std::string_view sentence, std::size_t at, std::int32_t& token) const {
  std::size_t length = 0;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < sentence.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(sentence[i]);
    const auto first = nodes_.begin() + nodes_[node].first_child;
    const auto last = first + nodes_[node].child_count;
    const auto child =
        std::lower_bound(first, last, byte, [](const Node& n, std::uint8_t b) { return n.byte < b; });
    if (child == last || child->byte != byte) break;
    node = static_cast<std::uint32_t>(child - nodes_.begin());
    if (child->token >= 0) {
      token = child->token;
      length = i + 1 - at;
    }
  }
  return length;
}

bool AddedTokenFinder::next(std::string_view sentence, std::size_t& at, std::size_t done, Match& match) const {
  if (tokens_.empty()) return false;
  while (at < sentence.size()) {
    if (!starts_[static_cast<unsigned char>(sentence[at])]) {
      ++at;
      continue;
    }
    std::int32_t index = 0;
    const std::size_t length = longest(sentence, at, index);
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    match = {at, at + length, token.id};
    // The search goes on behind this occurrence, taken or not, and does not know of stripped spaces.
    at += length;
    if (token.single_word && touches_word(sentence, match.begin, match.end)) continue;
    if (token.lstrip) match.begin = std::max(spaces_before(sentence, match.begin), done);
    if (token.rstrip) match.end = spaces_after(sentence, match.end);
    return true;
  }
  return false;
}

}  // namespace meshtrain
