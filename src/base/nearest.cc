#include "base/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace meshtrain {
namespace {

// Longer names are mistakes of another kind (a pasted file); comparing their start is enough.
constexpr std::size_t kLongest = 256;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

std::string_view without_dashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

bool begins_with(std::string_view text, std::string_view start) {
  return text.size() >= start.size() && std::equal(start.begin(), start.end(), text.begin(),
                                                   [](char a, char b) { return folded(a) == folded(b); });
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  // Rows i-2, i-1 and i of the table; distance[i][j] is between the first i of a and the first j of b.
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0U : 1U)});
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1])) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  const std::string_view word = without_dashes(name.substr(0, kLongest));
  const std::size_t most = std::max<std::size_t>(1, 2 * word.size() / 5);
  std::string best;
  std::pair best_difference(std::numeric_limits<std::size_t>::max(), false);
  for (const std::string& candidate : candidates) {
    const std::string_view other = without_dashes(candidate);
    const std::size_t distance = edit_distance(word, other);
    const bool begins = word.size() > 1 && begins_with(other, word);
    if (!begins && (distance > most || 2 * distance >= word.size())) continue;
    const std::pair difference(distance, !begins);
    if (difference < best_difference) {
      best = candidate;
      best_difference = difference;
    }
  }
  return best;
}

std::string nearest_hint(std::string_view name, std::span<const std::string> candidates,
                         std::string_view quote) {
  const std::string best = nearest(name, candidates);
  return best.empty() ? "" : fmt::format("; the nearest is {0}{1}{0}", quote, best);
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t i = 1; i <= n / i; ++i) {
    if (n % i != 0) continue;
    small.push_back(i);
    if (i != n / i) large.push_back(n / i);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

std::string values_around(std::span<const std::int64_t> values, std::int64_t value) {
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  if (above == values.end()) return fmt::format("{}", values.back());
  if (above == values.begin() || *above == value) return fmt::format("{}", *above);
  return fmt::format("{} or {}", *(above - 1), *above);
}

std::string divisors_around(std::int64_t n, std::int64_t value) {
  return values_around(divisors(n), value);
}

}  // namespace meshtrain
