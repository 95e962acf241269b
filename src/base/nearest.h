// "Did you mean …": the known name that a mistyped one is closest to.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace meshtrain {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (the optimal string
// alignment distance); letters compare without case, '_' equals '-'.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate closest to `name`, the first of equals; empty when there is no candidate.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace meshtrain
