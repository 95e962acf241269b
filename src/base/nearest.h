// "Did you mean …" for error messages: what comes closest to a name or a number that will not do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (the optimal string
// alignment distance); letters compare without case, '_' equals '-'.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `name` is probably meant to be: one that begins with it, or that fewer than half of its
// letters (two in five, at least one) have to be changed for. Of several the closest, then one that begins with
// it, then the first. Empty where none is alike. Dashes in front do not count.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

// "; the nearest is NAME", with `quote` on both sides of the name; empty where none is alike.
std::string nearest_hint(std::string_view name, std::span<const std::string> candidates,
                         std::string_view quote = "\"");

// Of n ≥ 1, ascending.
std::vector<std::int64_t> divisors(std::int64_t n);

// "4 or 8": of ascending values, of which there is one at least, those next to `value` on both sides; one
// number where they coincide or `value` lies outside.
std::string values_around(std::span<const std::int64_t> values, std::int64_t value);

// "4 or 8": the divisors of n ≥ 1 next to `value` on both sides; one number where they coincide.
std::string divisors_around(std::int64_t n, std::int64_t value);

}  // namespace meshtrain
