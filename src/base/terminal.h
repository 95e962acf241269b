// What a stream leads to, and text that suits it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace meshtrain {

// Written to a terminal, clears the line that is being rewritten there.
inline constexpr std::string_view kClearLine = "\r\x1b[K";

// Columns of the terminal that `descriptor` leads to: what the terminal says, else COLUMNS, else 80. 0: it
// leads to a file or a pipe.
std::size_t terminal_columns(int descriptor);

// `text` as it is printed to `out`: wrapped on a terminal (base/text_wrap.h), as it is in a file or a pipe,
// where a message has a line of its own.
std::string wrapped_for(std::FILE* out, std::string_view text);

// Prints the text so, with a newline behind it, at once. What cannot be written is lost: a terminal that was
// closed is no failure of the work.
void print_line(std::FILE* out, std::string_view text);

}  // namespace meshtrain
