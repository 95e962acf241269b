// What the program says beside its output: a paragraph on standard error.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/terminal.h"

namespace meshtrain {

// Notices and errors begin with this, whoever writes or forwards them.
inline constexpr std::string_view kMessagePrefix = "meshtrain: ";

// A command, and whatever else is to be copied, stands in backticks: it is not torn by the end of a line.
inline void say(const std::string& message) {
  print_line(stderr, std::string(kMessagePrefix) + message);
}

template <class... Args>
void notice(fmt::format_string<Args...> format, Args&&... args) {
  say(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace meshtrain
