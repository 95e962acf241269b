// Prose for a terminal: lines that end between words.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace meshtrain {

// Columns that UTF-8 text takes on a terminal: 2 for wide East Asian characters and emoji, 0 for combining and
// control characters, 1 for others and for each byte that is not UTF-8.
std::size_t columns_of(std::string_view text);

// The text with its spaces turned into line ends so that no line is wider than `columns` (at least 1). What is
// to be copied stays whole: `a command in backticks`, "a quoted path", key = value, 3 .. 5,
// -s key=value, --option VALUE, and whatever has no space in it. One of these that is wider than a line has a
// line of its own. Lines of the text stay apart, and what wraps is indented as the line that it comes from.
// Without a newline at the end, unless the text has one.
std::string wrap(std::string_view text, std::size_t columns);

}  // namespace meshtrain
